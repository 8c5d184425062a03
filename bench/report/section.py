"""A section of the report, and what every section gets to measure with. Knows no section."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.workers.numa import Slot
from bench.eval.journal import Journal
from bench.report.pace import Pace
from bench.report.subject import Subject
from bench.report.view import View

Result = dict[str, Any]


class NotMeasuredError(Exception):
    """This machine or model has nothing to measure here; the message says why. It is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The user's options."""

    model: Path
    out: Path
    text: Path | None = None
    windows: int
    """Number of windows of 512 tokens, for the perplexity."""
    threads: int
    quick: bool = False
    keep: bool = False
    policy: Path | None = None
    """Policy of an attested service's clients, for hardware evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The context in which sections measure."""

    options: ReportOptions
    subject: Subject
    nodes: tuple[Slot, ...]
    """The machine's NUMA nodes with the cores that this process may use."""
    journal: Journal
    """Parts of a section that take long, so that an interrupted run goes on with the next part."""
    pace: Pace
    tell: Callable[[str], None]
    """Says what is being measured."""

    @property
    def repeats(self) -> int:
        """Rounds whose median counts."""
        return 1 if self.options.quick else 3


@dataclass(frozen=True, slots=True)
class Section:
    """One question, and how it is answered."""

    name: str
    """Name for `--only` and `--skip`, and key in the JSON."""
    title: str
    about: str
    """A sentence or two: what is measured, and how."""
    measure: Callable[[Setup], Result]
    """The figures, ready for JSON. Raises NotMeasuredError; any other exception is a failed section."""
    view: Callable[[Mapping[str, Any]], View]
    expected_s: Callable[[Setup], float]
    """Estimates how many seconds `measure` takes."""
