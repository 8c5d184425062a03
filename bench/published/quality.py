"""What rounding costs, beside what the thesis and Intel's article publish of it: all from comparisons of bench.eval."""

import math
import statistics
from typing import Final

from bench.eval.comparison import METRICS
from bench.eval.comparison_page import conversion, share
from bench.eval.paired import paired_accuracy
from bench.eval.published import LONGBENCH_PERPLEXITY
from bench.published.results import NONE, UNMEASURED, File, Json, Results, table

Lines = list[str]
ABILITY: Final = ("quality-ceval-gemma3-270m", "quality-ceval-smollm2-135m")
WEIGHTS: Final = ("quality-smollm2-135m", "quality-weights-smollm2-135m")
GRANULARITY: Final = ("quality-groups-smollm2-135m", "quality-methods-smollm2-135m", "quality-groups-gemma3-270m")
MODELS: Final = {"smollm2-135m": "SmolLM2-135M", "gemma3-270m": "Gemma 3 270M"}
_GRAINS: Final = {"tensor": "per tensor", "channel": "per channel", "128": "128", "64": "64", "32": "32"}
_METHODS: Final = ("rtn", "scale", "quick", "gptq", "signround", "tuned")
_SETS: Final = ("lambada", "piqa", "winogrande", "hellaswag")
_DEFAULT: Final = "sym_int4-g64-quick"
_DESTROYED: Final = 10
"""A rise of perplexity from which percents say nothing."""


def perplexity(results: Results) -> Lines:
    rows = []
    files = results.shown("quality-longbench-smollm2-135m")
    measured = files[-1].result["rows"] if files else ()
    ours = {each["name"]: each["results"]["longbench-perplexity"] for each in measured}
    for name, qtype in (
        ("unquantized", "fp32"),
        *((f"{kind}-g64-rtn", kind) for kind in ("int8", "sym_int4", "asym_int4")),
    ):
        cells = [qtype]
        for figures in LONGBENCH_PERPLEXITY.values():
            rise = "" if qtype == "fp32" else f" ({figures[qtype] / figures['fp32'] - 1:+.2%})"
            cells.append(f"{figures[qtype]:.4f}{rise}")
        paired = ours[name].get("against_baseline") if name in ours else None
        rise = "" if paired is None else f" ({paired['rise']:+.2%} ± {100 * paired['rise_stderr']:.2f})"
        rows.append([*cells, f"{ours[name]['perplexity']:.3f}{rise}" if name in ours else NONE])
    heads = [f"published: {name}" for name in LONGBENCH_PERPLEXITY]
    return table(["weights", *heads, f"ours: SmolLM2-135M{_texts(ours.get('unquantized'))}"], rows)


def _texts(found: Json | None) -> str:
    """What was read of the sets."""
    if found is None:
        return ""
    lengths = found["by_window"]["tokens"]
    each = f"{min(lengths):,}" if min(lengths) == max(lengths) else f"{min(lengths):,} to {max(lengths):,}"
    sets, texts = len(found["sets"]), len(lengths)
    what = "one text of each set" if sets == texts else f"{texts:,} texts"
    return f", {what}, {each} tokens of each, {found['tokens']:,} in all"


def ability(results: Results) -> Lines:
    """C-Eval by category with standard errors; the published bars have no numbers."""
    rows, names = [], []
    for file in (file for name in ABILITY for file in results.shown(name)):
        for each in (row for row in file.result["rows"] if "ceval" in row["results"]):
            found = each["results"]["ceval"]
            names = list(found["categories"])
            cells = [share(found["categories"][name]["acc"], found["categories"][name]["acc_stderr"]) for name in names]
            paired = found.get("against_baseline")
            rows.append([
                _model(file), conversion(each["name"]), *cells,
                NONE if paired is None else _points(paired["difference"], paired["difference_stderr"]),
            ])  # fmt: skip
    return table(["ours", "weights", *names, "against unquantized, points"], rows, left=1) if rows else UNMEASURED


def answers(results: Results) -> Lines:
    """Two prompts, what they were answered, and our answers, greedy."""
    published = {"讲一个笑话": "(a joke, in English)", "What is AI?": "(a definition, in one sentence)"}
    rows = [[prompt, "published: Llama-2, `sym_int4`", text] for prompt, text in published.items()]
    files = results.shown("answers-smollm2-135m")
    if not files:
        return UNMEASURED
    for file in files:
        rows += [
            [each["prompt"], f"ours: SmolLM2-135M, {conversion(name)}", " ".join(text.split()).replace("|", "\\|")]
            for each in file.result["rows"]
            for name, text in each["answers"].items()
        ]
    rows.sort(key=lambda row: list(published).index(row[0]) if row[0] in published else len(published))
    return table(["prompt", "model", "answer"], rows, left=2)


def weights(results: Results) -> Lines:
    """Relative error of the rounded weights, by type."""
    zeroed = {
        each["name"]: each["results"]["weights"]["zeroed"]
        for file in results.shown("quality-weights-smollm2-135m")
        for each in file.result["rows"]
    }
    rows = []
    for file in results.shown("quality-smollm2-135m"):
        for each in file.result["variants"]:
            qtype, group, method = each["variant"].split(" ")
            if method == "rtn":
                found = zeroed.get(f"{qtype}-g{group.removeprefix('g')}-rtn")
                rows.append([
                    f"`{each['variant']}`", f"{each['weights_error']['relative_rms']:.2%}",
                    NONE if found is None else f"{found:.1%}", f"{each['perplexity_increase']:+.1%}",
                ])  # fmt: skip
    head = ["ours: rounded to nearest", "weights moved (root mean square)", "weights that become zero", "perplexity"]
    return table(head, rows)


def granularity(results: Results) -> Lines:
    """What shares a scale, by method: the rise of perplexity and the divergence from the unquantized model."""
    rows = []
    for model, title in MODELS.items():
        files = [file for each in ("methods", "groups") for file in results.shown(f"quality-{each}-{model}")]
        found = {each["name"]: each["results"].get("kl") for file in files for each in file.result["rows"]}
        for qtype, method in (*(("sym_int4", method) for method in _METHODS), ("asym_int4", "rtn")):
            cells = [_divergence(found.get(f"{qtype}-g{grain}-{method}")) for grain in _GRAINS]
            if any(cell != NONE for cell in cells):
                rows.append([title, f"`{qtype}`, `{method}`", *cells])
    return table(["perplexity's rise; mean KL", "weights", *_GRAINS.values()], rows, left=1) if rows else UNMEASURED


def _divergence(found: Json | None) -> str:
    if found is None:
        return NONE
    rise, error = found["perplexity_increase"], found["perplexity_increase_stderr"]
    shown = f"{rise:+.1%} ± {100 * error:.1f}" if rise < _DESTROYED else "destroyed"
    return f"{shown}; {found['kl']['mean']:.3f}"


def accuracy(results: Results) -> Lines:
    """Mean of four sets, int4 over fp32, and how methods differ from fp32 and from the default on the same tasks."""
    found = means(results)
    base = next((each for name, each, _, _ in found if name == "unquantized"), None)
    default = next((each for name, each, _, _ in found if name == _DEFAULT), None)
    rows = []
    for name, each, mean, against in found:
        over = [f"{mean / _mean(base):.3f}", f"{_mean(each, 'acc') / _mean(base, 'acc'):.3f}"] if base else [NONE] * 2
        beside = _paired(default, each) if default and name != _DEFAULT else NONE
        rows.append([conversion(name), f"{mean:.1%}", *over, against or NONE, beside])
    heads = ["ours: SmolLM2-135M", "mean of the four sets", "over fp32", "over fp32, all by acc",
             "against fp32, points", "against `quick`, points"]  # fmt: skip
    return table(heads, rows) if rows else UNMEASURED


def means(results: Results) -> list[tuple[str, Json, float, str]]:
    """Of each conversion: its name, its results, the mean of the four sets, and its points against the unquantized."""
    files = results.shown("quality-methods-smollm2-135m")
    found = {each["name"]: each["results"] for file in files for each in file.result["rows"]}
    whole = {name: each for name, each in found.items() if all(one in each for one in _SETS)}
    base = whole.get("unquantized")
    return [
        (name, each, _mean(each), _paired(base, each) if base and each is not base else "")
        for name, each in whole.items()
    ]


def _mean(found: Json, metric: str | None = None) -> float:
    """metric: of all sets, in place of each one's usual."""
    return statistics.fmean(found[name][metric or METRICS[name]] for name in _SETS)


def _paired(base: Json, other: Json) -> str:
    """The mean of the sets' paired differences, with its standard error: sets are independent."""
    pairs = [paired_accuracy(base[name]["right"][METRICS[name]], other[name]["right"][METRICS[name]]) for name in _SETS]
    error = math.hypot(*(each["difference_stderr"] for each in pairs)) / len(pairs)
    return _points(statistics.fmean(each["difference"] for each in pairs), error)


def _points(difference: float, error: float) -> str:
    return f"{100 * difference:+.1f} ± {100 * error:.1f}"


def _model(file: File) -> str:
    return next(title for name, title in MODELS.items() if file.stem.endswith(name))
