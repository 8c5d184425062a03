"""Formats comparisons (`bench.eval.comparison`) as Markdown tables between two marks of a page. Does not measure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.eval.comparison import METRICS
from bench.eval.published import LONGBENCH_PERPLEXITY
from bench.table.markdown import between_marks, heading, row

TITLES: Final[Mapping[str, str]] = {
    "hellaswag": "HellaSwag", "piqa": "PIQA", "winogrande": "WinoGrande", "lambada": "LAMBADA", "ceval": "C-Eval",
    "multiple-choice": "questions",
}  # fmt: skip
_LONG: Final = "longbench-perplexity"
_SHARES: Final[Mapping[str, str]] = {"tensor": "a matrix", "channel": "a row"}
_CONVERSION: Final = re.compile(r"(\w+)-g(\w+)-(\w+)")
_DESTROYED: Final = 10
"""A rise of perplexity from which percents say nothing."""
Row = Mapping[str, Any]


def with_comparison(page: str, name: str, comparison: Mapping[str, Any]) -> str:
    """The page with the text between the comparison's marks replaced. Raises ValueError if it has none."""
    return between_marks(page, name, tables(comparison))


def tables(comparison: Mapping[str, Any]) -> str:
    """All that a comparison has, in Markdown: a line of facts, then a table for each kind of result."""
    settings, rows = comparison["settings"], comparison["rows"]
    facts = [comparison["model"], *_facts(settings)]
    if "kl" in settings and not any(each["name"] == "unquantized" for each in rows):
        facts.append(f"unquantized: perplexity {_baseline(rows)}")
    cpu = comparison.get("machine", {}).get("name", comparison["cpu"])
    parts = [f"{'; '.join(facts)}; {cpu}, {rows[-1]['tier']}, commit {comparison['commit']}."]
    if _LONG in settings:
        parts.append(_long_texts(rows))
    if any("categories" in each["results"].get("ceval", {}) for each in rows):
        parts.append(_categories(rows))
    main = [what for what in settings if what != _LONG and what != "ceval"]
    if main:
        parts.append(_main(rows, settings))
    return "\n\n".join(parts)


def conversion(name: str) -> str:
    """A row's name: type, what shares a scale, method."""
    match = _CONVERSION.fullmatch(name)
    if match is None:
        return name
    qtype, group, method = match.groups()
    return f"`{qtype}`, {_SHARES.get(group, group)}, `{method}`"


def _facts(settings: Mapping[str, Row]) -> list[str]:
    facts = []
    for what, each in settings.items():
        if what in TITLES:
            facts.append(f"{TITLES[what]}: {each['tasks']:,} tasks")
        elif what in ("kl", "perplexity"):
            facts.append(f"{each['text']}: {each['windows']} windows of {each['context']} tokens")
        elif what == _LONG:
            most = (
                ""
                if each["tokens_of_a_text"] is None
                else f", the first {each['tokens_of_a_text']:,} tokens of each text"
            )
            facts.append(f"LongBench's English sets in windows of {each['context']:,} tokens{most}")
    return facts


def _main(rows: Sequence[Row], settings: Mapping[str, Row]) -> str:
    tasks = [what for what in METRICS if what in settings and what != "ceval"]
    columns = ["conversion"]
    columns += ["bits (layers)", "weights moved"] if "weights" in settings else []
    columns += ["perplexity", "mean KL", "same top token"] if "kl" in settings else []
    columns += [TITLES[what] for what in tasks] + (["LAMBADA, perplexity"] if "lambada" in tasks else [])
    lines = heading(columns)
    for each in rows:
        results = each["results"]
        cells = [conversion(each["name"])]
        if "weights" in settings:
            moved = results.get("weights")
            cells += ["", ""] if moved is None else [
                f"{moved['linear_bits_per_weight']:.2f}", f"{moved['relative_rms']:.2%}"
            ]  # fmt: skip
        if "kl" in settings:
            cells += _divergence(each, rows)
        cells += [_accuracy(what, results.get(what)) for what in tasks]
        if "lambada" in tasks:
            cells.append(f"{results['lambada']['perplexity']:.1f}" if "lambada" in results else "")
        lines.append(row(cells))
    return "\n".join(lines)


def _divergence(each: Row, rows: Sequence[Row]) -> list[str]:
    kl = each["results"].get("kl")
    if kl is not None:
        rise, error = kl["perplexity_increase"], kl["perplexity_increase_stderr"]
        shown = f"{rise:+.1%} ± {100 * error:.1f}" if rise < _DESTROYED else f"times {1 + rise:.1e}"
        return [shown, f"{kl['kl']['mean']:.4f}", f"{kl['top1_agreement']:.1%}"]
    return [_baseline(rows) if each["name"] == "unquantized" else "", "", ""]


def _baseline(rows: Sequence[Row]) -> str:
    base = next(each["results"]["kl"]["baseline"] for each in rows if "kl" in each["results"])
    return f"{base['perplexity']:.2f} ± {base['perplexity_stderr']:.2f}"


def _accuracy(what: str, result: Row | None) -> str:
    if result is None:
        return ""
    metric = METRICS[what]
    value, error = result[metric], result[f"{metric}_stderr"]
    if "against_baseline" not in result:
        return share(value, error)
    return f"{value:.1%} ({_difference(result['against_baseline'])})"


def share(value: float, error: float) -> str:
    """A share and its standard error, as percent and points."""
    return f"{value:.1%} ± {100 * error:.1f}"


def _difference(paired: Row) -> str:
    p = paired["mcnemar_p"]
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    return f"{100 * paired['difference']:+.1f} ± {100 * paired['difference_stderr']:.1f}, {shown}"


def _categories(rows: Sequence[Row]) -> str:
    there = [each for each in rows if "ceval" in each["results"]]
    names = list(there[0]["results"]["ceval"]["categories"])
    lines = heading(["weights", *names, "all questions against unquantized"])
    for each in there:
        result = each["results"]["ceval"]
        cells = [share(result["categories"][name]["acc"], result["categories"][name]["acc_stderr"]) for name in names]
        paired = result.get("against_baseline")
        lines.append(row([conversion(each["name"]), *cells, "" if paired is None else _difference(paired)]))
    return "\n".join(lines)


def _long_texts(rows: Sequence[Row]) -> str:
    there = [each for each in rows if _LONG in each["results"]]
    lines = heading(
        ["weights", "perplexity", "against unquantized", *(f"published: {name}" for name in LONGBENCH_PERPLEXITY)]
    )
    for each in there:
        result = each["results"][_LONG]
        paired = result.get("against_baseline")
        rise = "" if paired is None else f"{paired['rise']:+.2%} ± {100 * paired['rise_stderr']:.2f}"
        qtype = "fp32" if each["name"] == "unquantized" else each["qtype"]
        cells = [conversion(each["name"]), f"{result['perplexity']:.3f} ± {result['perplexity_stderr']:.2f}", rise]
        lines.append(row([*cells, *_published(each["name"], qtype)]))
    sets = list(there[0]["results"][_LONG]["sets"])
    lines += ["", *heading(["set", *(conversion(each["name"]) for each in there)])]
    for name in sets:
        values = [each["results"][_LONG]["sets"][name]["perplexity"] for each in there]
        lines.append(row([name, *(f"{value:.2f}" for value in values)]))
    return "\n".join(lines)


def _published(name: str, qtype: str) -> list[str]:
    """Theirs are rounded to nearest; another method has no counterpart."""
    if name != "unquantized" and not name.endswith("-rtn"):
        return [""] * len(LONGBENCH_PERPLEXITY)
    cells = []
    for figures in LONGBENCH_PERPLEXITY.values():
        value = figures.get(qtype)
        if value is None:
            cells.append("")
        elif qtype == "fp32":
            cells.append(f"{value:.4f}")
        else:
            cells.append(f"{value:.4f} ({value / figures['fp32'] - 1:+.2%})")
    return cells
