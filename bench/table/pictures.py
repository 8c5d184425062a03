"""The pictures of docs/benchmark-details.md: those of `bench.plots`, of the machine that was measured last.

Puts a machine's figures of one model together, which can come from several files. Needs matplotlib to draw.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench.table.cells import columns
from bench.table.results import Comparison, Machine

FILES: Final = ("1.1b-batch.svg", "1.1b-context.svg", "1.1b-first-token.svg", "embedded-batch.svg")
"""The files that the page shows."""


def pictured_machine(comparisons: Sequence[Comparison]) -> Machine | None:
    """The machine with the newest figures; None without any."""
    newest = {
        machine: max((cell.source.measured_at, cell.source.file) for cell in column.values())
        for machine, column in columns(comparisons).items()
    }
    return max(newest, key=newest.__getitem__, default=None)


def merged(comparisons: Sequence[Comparison], machine: Machine, model: str) -> dict[str, Any]:
    """One result for `bench.plots.draw`, with each work's figures from the file that tables take them from."""
    column = columns(comparisons).get(machine, {})
    works: dict[str, Any] = {}
    engines: dict[str, dict[str, Any]] = {}
    for (name, work), cell in column.items():
        if name != model:
            continue
        works[work] = cell.source.result["works"][work]
        for engine, figures in cell.source.result["engines"].items():
            if work in figures["results"]:
                engines.setdefault(engine, {"results": {}})["results"][work] = figures["results"][work]
    return {"model": model, "cpu": machine.title, "works": works, "engines": engines}


def draw_pictures(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Draws those that the page shows anew; nothing where matplotlib is missing or nothing was measured."""
    machine = pictured_machine(comparisons)
    if machine is None or find_spec("matplotlib") is None:
        return []
    from bench.plots import draw

    drawn: list[Path] = []
    for model in ("1.1b", "embedded"):
        drawn += draw(merged(comparisons, machine, model), folder, only=FILES)
    return drawn
