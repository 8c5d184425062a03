"""What a section shows: sentences, tables of text and charts of numbers. Knows no HTML, no SVG and no measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    caption: str
    columns: Sequence[str]
    """Column names with units; the first one names the rows."""
    rows: Sequence[Sequence[str]]
    published: Sequence[str] = ()
    """Columns of published figures, which the page sets apart. Each row has their cells after its own."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines over a number."""

    title: str
    x_label: str
    y_label: str
    series: Series
    log_x: bool = False
    levels: Mapping[str, float] | None = None
    """Horizontal lines by name."""
    is_dense: bool = False
    """Many points: no markers, and as wide as the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars by category, beside each other where there are several series."""

    title: str
    y_label: str
    categories: Sequence[str]
    series: Mapping[str, Sequence[float]]
    """A value for each category."""
    errors: Sequence[float] = ()
    """Half the length of each bar's error line, for the only series."""
    decimals: int = 0


Chart = Lines | Bars


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
