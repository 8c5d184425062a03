"""Chooses what a table shows: for each machine, model and work the newest figure, and what it is worth.

Knows comparisons as they were read, and no Markdown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.code_age import EngineChange
from bench.compare_table import OURS, best_peer
from bench.table.results import PEERS_BEFORE, Comparison, Machine

MODELS: Final[Mapping[str, str]] = {
    "a3b": "30B-A3B",
    "a3b-12": "30B-A3B, 12 of its 48 layers",
    "gpt-oss-12": "gpt-oss-20b, 12 of its 24 layers",
    "hybrid-8": "Qwen3.6-35B-A3B, 8 of its 40 layers",
    "qwen3-8b": "Qwen3-8B",
    "8b": "8B",
    "7b": "7B",
    "1.1b": "1.1B",
    "embedded": "135M",
}
"""The models' names in tables, in order."""
ORDER: Final = ("Xeon", "Zen 6", "Zen 5", "Zen 4", "Zen 3")
"""Prefixes of machines' names in column order; others come last."""
_WORK = re.compile(r"(prefill|decode) (\d+)(?: at (\d+))?")
_USUAL_CONTEXT_TOKENS = 128


@dataclass(frozen=True, slots=True, order=True)
class WorkName:
    """A work's name in a JSON, ordered as in tables: short contexts first, there prompts before answers."""

    is_long: bool
    context_tokens: int
    """Context length of a long-context work, else 0."""
    is_decode: bool
    number: int
    """A prompt's tokens, or the streams."""
    text: str
    """Text of the name."""

    @property
    def title(self) -> str:
        """The name in words."""
        if not self.is_decode:
            return f"prompt of {self.number:,}"
        answers = "one answer" if self.number == 1 else f"{self.number} answers together"
        return f"{answers} after {self.context_tokens:,}" if self.context_tokens else answers


def work_name(text: str) -> WorkName:
    """Takes a name apart. Raises ValueError."""
    match = _WORK.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no work's name")
    is_decode, number, context = match[1] == "decode", int(match[2]), int(match[3] or 0)
    tokens = (0 if context == _USUAL_CONTEXT_TOKENS else context) if is_decode else (number if number > 512 else 0)
    return WorkName(tokens > 512, tokens, is_decode, number, text)


@dataclass(frozen=True, slots=True)
class Cell:
    """One work of one model on one machine."""

    source: Comparison
    ours_tokens_per_s: float
    limit_tokens_per_s: float
    limited_by: str
    """The limiting rate: "read" or "compute"."""
    peer: str | None
    """The fastest of the peers; None where no peer has a figure."""
    ratio: float
    """Our speed over the peer's, of medians; 0 without a peer. Likewise the next two, of single rounds."""
    lowest: float
    highest: float
    rounds: int
    without: tuple[str, ...] = ()
    """Peers that were compared with before on this machine, and that this comparison lacks."""

    @property
    def share(self) -> float:
        """Our speed over the limit that no engine can pass."""
        return self.ours_tokens_per_s / self.limit_tokens_per_s

    def is_older_than(self, change: EngineChange | None) -> bool:
        """Whether the engine was changed after the code that was measured."""
        return change is not None and self.source.code_at < change.at


Column = Mapping[tuple[str, str], Cell]
"""A machine's cells by model and work."""


def columns(comparisons: Sequence[Comparison]) -> dict[Machine, Column]:
    """The newest cell of each machine, model and work; machines in the order of columns.

    One without a peer does not replace one with a peer, because there is nothing to compare. One with fewer peers says
    which it lacks.
    """
    found: dict[Machine, dict[tuple[str, str], Cell]] = {}
    for comparison in sorted(comparisons, key=lambda one: (one.measured_at, one.file)):
        for work in comparison.result["works"]:
            cell = cell_of(comparison, work)
            column = found.setdefault(comparison.machine, {})
            before = column.get((comparison.model, work))
            if cell is not None and (cell.peer or before is None or before.peer is None):
                column[comparison.model, work] = replace(cell, without=_without(cell, before))
    return {machine: found[machine] for machine in sorted(found, key=_place) if found[machine]}


def cell_of(comparison: Comparison, work: str) -> Cell | None:
    """A comparison's figures of a work; None where it has none for tables."""
    result = comparison.result
    ours = result["engines"][OURS]["results"].get(work, {})
    if not comparison.gives(work) or "median" not in ours:
        return None
    peer = best_peer(result, work)
    ratio = {} if peer is None else result["ratios"].get(peer, {}).get(work, {})
    return Cell(
        source=comparison,
        ours_tokens_per_s=ours["median"],
        limit_tokens_per_s=result["works"][work]["limit_tokens_per_s"],
        limited_by=result["works"][work]["limited_by"],
        peer=peer if ratio else None,
        ratio=ratio.get("of_medians", 0.0),
        lowest=ratio.get("lowest", 0.0),
        highest=ratio.get("highest", 0.0),
        rounds=len(ours["rounds"]),
    )


def _without(cell: Cell, before: Cell | None) -> tuple[str, ...]:
    """The peers that a cell lacks and that its file's predecessor or the cell before had."""
    result = cell.source.result
    earlier = {*result.get(PEERS_BEFORE, ()), *(before.source.result["engines"] if before else ())}
    earlier |= set(before.without) if before else set()
    return tuple(sorted(name for name in earlier - set(result["engines"]) if not name.startswith(OURS)))


def works_of(table: Mapping[Machine, Column]) -> list[tuple[str, WorkName]]:
    """All models and works that some machine has, in row order."""
    there = {key for column in table.values() for key in column}
    models = [*MODELS, *sorted({model for model, _ in there} - set(MODELS))]
    return sorted(((model, work_name(work)) for model, work in there), key=lambda row: (models.index(row[0]), row[1]))


def _place(machine: Machine) -> tuple[int, Machine]:
    first = next((index for index, begin in enumerate(ORDER) if machine.name.startswith(begin)), len(ORDER))
    return first, machine
