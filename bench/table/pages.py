"""Writes the tables into the pages, between markers: all Markdown of `redoubt bench table` is here.

Chooses no figures (`bench.table.cells`) and measures nothing. What was the engine's last change is given: a table
records it, so that a test can write the same table again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.code_age import EngineChange, in_minutes
from bench.compare_table import OURS
from bench.table import conversations
from bench.table.cells import MODELS, Cell, Column, columns, work_name, works_of
from bench.table.conversations import Conversations
from bench.table.markdown import heading, row
from bench.table.results import Comparison, Machine, Results, ResultsError, day

COMPARISONS: Final = "comparisons"
CONVERSATIONS: Final = "conversations"
"""Names of blocks, which markers in a page begin and end."""
SHORT: Final[Mapping[str, tuple[str, ...]]] = {
    "a3b": ("prefill 512", "decode 1 at 128", "decode 8 at 128"),
    "a3b-12": ("prefill 512", "decode 1 at 128", "decode 8 at 128"),
    "gpt-oss-12": ("prefill 512", "decode 1 at 128", "decode 8 at 128"),
    "hybrid-8": ("prefill 512", "decode 1 at 128", "decode 8 at 128"),
    "qwen3-8b": ("prefill 512", "decode 1 at 128", "decode 8 at 128"),
    "8b": ("prefill 512", "decode 1 at 128"),
    "7b": ("prefill 512", "decode 1 at 512"),
    "1.1b": (
        *("prefill 512", "decode 1 at 128", "decode 8 at 128", "decode 32 at 128"),
        *("prefill 8192", "decode 1 at 8192"),
    ),
}
"""The rows of the short table: of models that people run. The details have the others."""
AIMS: Final[Mapping[tuple[str, str], float]] = {
    ("a3b", "prefill 512"): 1.5,
    ("a3b", "decode 1 at 128"): 1.3,
    ("a3b-12", "prefill 512"): 1.5,
    ("a3b-12", "decode 1 at 128"): 1.3,
    **{(model, "prefill 512"): 1.5 for model in ("gpt-oss-12", "hybrid-8")},
    **{(model, "decode 1 at 128"): 1.3 for model in ("gpt-oss-12", "hybrid-8")},
    ("qwen3-8b", "prefill 512"): 1.5,
    ("qwen3-8b", "decode 1 at 128"): 1.08,
    ("8b", "prefill 512"): 1.5,
    ("8b", "decode 1 at 128"): 1.08,
    ("7b", "prefill 512"): 1.5,
    ("7b", "decode 1 at 512"): 1.08,
    ("1.1b", "prefill 512"): 1.5,
    ("1.1b", "decode 1 at 128"): 1.08,
    ("1.1b", "decode 4 at 128"): 1.8,
    ("1.1b", "decode 8 at 128"): 2.5,
    ("1.1b", "decode 16 at 128"): 3.0,
    ("1.1b", "decode 32 at 128"): 3.5,
    ("1.1b", "prefill 4096"): 1.3,
    ("1.1b", "decode 1 at 4096"): 1.3,
    ("1.1b", "prefill 8192"): 1.3,
    ("1.1b", "decode 1 at 8192"): 1.3,
    ("embedded", "prefill 512"): 2.0,
    ("embedded", "decode 1 at 128"): 2.0,
    ("embedded", "decode 32 at 128"): 2.2,
}
"""Our goals as ratios to the best peer."""
PEERS: Final[Mapping[str, str]] = {
    "llama_cpp": "llama.cpp",
    "ik_llama_cpp": "ik_llama.cpp",
    "openvino_genai": "OpenVINO GenAI",
    "vllm_cpu": "vLLM",
    "ipex_llm": "IPEX-LLM",
}
_OLDER = "†"
_FEWER: Final = "‡"
_RECORDED = re.compile(r"last change \(`(\w+)`, ([\d-]+ [\d:]+) UTC\)")


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages that contain the tables."""

    short: Path
    details: Path
    files: Path

    @classmethod
    def of(cls, docs: Path, results: Path) -> "Pages":
        """The pages of a repository's folders."""
        return cls(docs / "benchmarks.md", docs / "benchmark-details.md", results / "README.md")


def written(
    results: Results, served: Sequence[Conversations], pages: Pages, change: EngineChange | None
) -> dict[Path, str]:
    """Each page's text with its tables written anew. Raises ResultsError for a page without markers, OSError."""
    tables = {
        pages.short: {COMPARISONS: short_table(results, change), CONVERSATIONS: conversations.short_table(served)},
        pages.details: {COMPARISONS: details(results, change), CONVERSATIONS: conversations.details(served)},
        pages.files: {COMPARISONS: file_table(results)},
    }
    return {path: with_blocks(path, blocks) for path, blocks in tables.items()}


def with_blocks(path: Path, blocks: Mapping[str, str]) -> str:
    """A page with each block between the markers of its name. Raises ResultsError, OSError."""
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        first, last = begin(name), end(name)
        before, found, rest = text.partition(first)
        _, closed, after = rest.partition(last)
        if not (found and closed):
            raise ResultsError(f"{path} has no lines {first} and {last} to write the table between: add them")
        text = f"{before}{first}\n\n{block}\n\n{last}{after}"
    return text


def begin(name: str) -> str:
    """The line before a block."""
    return f"<!-- {name}: begin (written by `redoubt bench table --render`) -->"


def end(name: str) -> str:
    """The line after it."""
    return f"<!-- {name}: end -->"


def recorded_change(page: str) -> EngineChange | None:
    """The engine's last change as a page names it; None where it names none."""
    match = _RECORDED.search(page)
    return match and EngineChange(in_minutes(f"{match[2]}+00:00"), match[1])


def short_table(results: Results, change: EngineChange | None) -> str:
    """The ratios of the rows that matter, and how old their code is."""
    table = columns(results.comparisons)
    lines = heading(["", *_titles(table, change)])
    for model, works in SHORT.items():
        for work in works:
            cells = [_ratio(column.get((model, work)), _mark(column, change)) for column in table.values()]
            if any(cells):
                lines.append(row([f"{MODELS[model]}, {work_name(work).title}", *cells]))
    dates = [day(max(cell.source.code_at for cell in column.values())) for column in table.values()]
    lines.append(row(["newest code", *dates]))
    return "\n".join([*lines, "", _age(table, change)])


def details(results: Results, change: EngineChange | None) -> str:
    """Every ratio with its spread and aim; then of each machine the tokens a second, limits, versions and files."""
    table = columns(results.comparisons)
    lines = heading(["", "aim", *_titles(table, change)], left=1)
    for model, work in works_of(table):
        aim = AIMS.get((model, work.text))
        cells = [f"{MODELS.get(model, model)}, {work.title}", "" if aim is None else f"{aim:g}"]
        cells += [_spread(column.get((model, work.text)), aim, _mark(column, change)) for column in table.values()]
        lines.append(row(cells))
    parts = ["\n".join([*lines, "", _age(table, change)]), "## Machines"]
    parts += [_machine_part(machine, column, results.about) for machine, column in table.items()]
    return "\n\n".join(parts)


def file_table(results: Results) -> str:
    """Every file, with what it is."""
    lines = heading(["file", "machine", "measured", "commit", "pages", "peers", "rounds", "notes"], left=8)
    for one in results.comparisons:
        result = one.result
        rounds, planned = result["rounds_finished"], result["repeats"]
        there = [PEERS.get(name, name) for name in result["engines"] if not name.startswith(OURS)]
        lines.append(
            row(
                [
                    *(one.file, one.machine.title, day(one.measured_at), _commit(one), ", ".join(result["kv_type"])),
                    *(", ".join(there), f"{rounds}" if rounds == planned else f"{rounds} of {planned}", one.note),
                ]
            )
        )
    return "\n".join(lines)


def _machine_part(machine: Machine, column: Column, about: Mapping[str, str]) -> str:
    """The part of a page about one machine."""
    files = {cell.source.file: cell.source for cell in column.values()}
    newest = max(files.values(), key=lambda one: (one.measured_at, one.file))
    peers = [name for name in PEERS if any(name in one.result["engines"] for one in files.values())]
    known = " ".join(filter(None, [_facts(newest), about.get(machine.name, "")]))
    lines = [f"### {machine.title}", "", *([known, ""] if known else [])]
    lines += heading(["tokens/s", "Redoubt", "of the limit", *(PEERS[name] for name in peers), "file"])
    for model, work in works_of({machine: column}):
        cell = column[model, work.text]
        engines = cell.source.result["engines"]
        theirs = [_figure(engines.get(name, {}).get("results", {}).get(work.text, {}), cell, name) for name in peers]
        ours = f"{_rate(cell.ours_tokens_per_s)}"
        share = f"{cell.share:.0%} ({cell.limited_by})"
        lines.append(row([f"{MODELS.get(model, model)}, {work.title}", ours, share, *theirs, cell.source.file]))
    return "\n".join([*lines, "", *(_file_line(one) for _, one in sorted(files.items()))])


def _file_line(one: Comparison) -> str:
    result, limits = one.result, one.result["limits"]
    peers = [engine for name, engine in result["engines"].items() if not name.startswith(OURS)]
    versions = [f"{engine['version']}{_peer_setting(engine['settings'])}" for engine in peers]
    missing = [PEERS.get(name, name) for name in result["missing"]]
    parts = [
        f"`{one.file}`: {day(one.measured_at)}, commit {_commit(one)}, {_rounds(result['rounds_finished'])}",
        _settings(result["engines"][OURS]["settings"]),
        f"reads {limits['read_bytes_per_s'] / 1e9:.0f} GB/s, {limits['macs_per_s'] / 1e9:.0f} G multiply-adds/s "
        f"({limits['instruction']})",
        f"beside {', '.join(versions) or 'no peer'}",
        *([f"missing: {', '.join(missing)}"] if missing else []),
        *([one.note] if one.note else []),
    ]
    return f"- {'; '.join(parts)}."


def _peer_setting(settings: str) -> str:
    """The part of a peer's settings that decides its speed."""
    if "generic build" in settings:
        return " (the generic wheel)"
    hint = re.search(r"INFERENCE_PRECISION_HINT ([\w ]+)", settings)
    return f" (in {hint[1]})" if hint else ""


def _settings(settings: str) -> str:
    """Ours, without the threads, which the heading has."""
    return ", ".join(part for part in settings.split(", ") if not part.startswith("threads "))


def _rounds(number: int) -> str:
    return f"{number} round{'' if number == 1 else 's'}"


def _facts(one: Comparison) -> str:
    """A machine's facts from the JSON; empty for old files."""
    machine = one.result.get("machine")
    if machine is None:
        return ""
    flags = ", ".join(machine["flags"]) or "no vector instructions of ours"
    return (
        f"{machine['model_name']}, family {machine['family']}, model {machine['model']}; {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB; {flags}."
    )


def _titles(table: Mapping[Machine, Column], change: EngineChange | None) -> list[str]:
    """Headings of columns, with threads where they differ."""
    differ = len({machine.threads for machine in table}) > 1
    names = [machine.title if differ else machine.name for machine in table]
    all_older = [all(cell.is_older_than(change) for cell in column.values()) for column in table.values()]
    return [f"{name} {_OLDER}" if older else name for name, older in zip(names, all_older, strict=True)]


def _mark(column: Column, change: EngineChange | None) -> EngineChange | None:
    """The engine change against which a column's cells are marked; None if its heading has the mark already."""
    return None if all(cell.is_older_than(change) for cell in column.values()) else change


def _age(table: Mapping[Machine, Column], change: EngineChange | None) -> str:
    """The note on threads, missing peers and old code."""
    threads = {machine.threads for machine in table}
    each = f"Every engine had {threads.pop()} threads. " if len(threads) == 1 else ""
    if any(cell.without for column in table.values() for cell in column.values()):
        each += f"{_FEWER} beside fewer peers than an earlier comparison had: the details name them. "
    if change is None:
        return f"{each}When the engine last changed is not known here."
    last = f"the engine's last change (`{change.commit}`, {change.at:%Y-%m-%d %H:%M} UTC)"
    older = [cell.is_older_than(change) for column in table.values() for cell in column.values()]
    if not any(older):
        return f"{each}All figures are of code after {last}."
    number = "all" if all(older) else f"{sum(older)} of {len(older)}"
    return f"{each}{_OLDER} measured with code from before {last}: {number} figures."


def _ratio(cell: Cell | None, change: EngineChange | None) -> str:
    if cell is None:
        return ""
    shown = f"{cell.ratio:.2f}{f' {_FEWER}' if cell.without else ''}" if cell.peer else "no peer"
    return shown + (f" {_OLDER}" if cell.is_older_than(change) else "")


def _without(cell: Cell) -> str:
    """The peers that the cell lacks, because a ratio to the best of fewer is another one."""
    return f", without {', '.join(PEERS.get(name, name) for name in cell.without)}" if cell.without else ""


def _spread(cell: Cell | None, aim: float | None, change: EngineChange | None) -> str:
    if cell is None or cell.peer is None:
        return _ratio(cell, change)
    shown = f"{cell.ratio:.2f} ({cell.lowest:.2f} to {cell.highest:.2f})" if cell.rounds > 1 else f"{cell.ratio:.2f}"
    shown = (f"**{shown}**" if aim is not None and cell.ratio < aim else shown) + _without(cell)
    return f"{shown} {_OLDER}" if cell.is_older_than(change) else shown


def _figure(result: Mapping[str, Any], cell: Cell, name: str) -> str:
    """A peer's speed, or in a word why there is none; the best peer's in bold."""
    if "median" not in result:
        return "crashed" if result.get("none") == "crashed" else "none" if "none" in result else ""
    return f"**{_rate(result['median'])}**" if name == cell.peer else _rate(result["median"])


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.1f}"


def _commit(one: Comparison) -> str:
    name, _, dirty = str(one.result["commit"]).partition("-")
    return f"{name[:7]}{'+' if dirty else ''}"
