"""Draws charts as SVG for a page. Needs matplotlib (the extra `bench`). Does not know what is drawn.

They are transparent, their text is text and their colours are CSS variables, so that the page's font and its light and
dark themes apply.
"""

import io
import re
from importlib import import_module
from typing import Any, Final

from bench.report.view import Bars, Chart, Lines

_INK, _GRID = "#010203", "#040506"
_SERIES: Final = ("#0a0101", "#0a0102", "#0a0103", "#0a0104", "#0a0105", "#0a0106")
"""Stand for CSS variables in what matplotlib draws."""
_VARIABLES: Final = {
    _INK: "currentColor",
    _GRID: "var(--grid)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(_SERIES, 1)},
}
_MARKERS: Final = "osD^vP"
_STYLE: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "redoubt",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
_LINES_INCHES, _BARS_INCHES, _WIDE_INCHES = (5.6, 3.4), (4.8, 3.2), (11.6, 3.4)
"""Larger ones have smaller text, since a page's columns scale them."""


def svg(chart: Chart) -> str:
    """The chart as an `svg` element."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("svg")
    plot: Any = import_module("matplotlib.pyplot")
    with matplotlib.rc_context(_STYLE):
        size = _WIDE_INCHES if is_wide(chart) else _LINES_INCHES if isinstance(chart, Lines) else _BARS_INCHES
        figure, axes = plot.subplots(figsize=size, layout="constrained")
        axes.set_title(chart.title)
        axes.set_ylabel(chart.y_label)
        if isinstance(chart, Lines):
            _draw_lines(axes, chart)
        else:
            _draw_bars(axes, chart)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        plot.close(figure)
    return _for_a_page(drawn.getvalue(), chart.title)


def is_wide(chart: Chart) -> bool:
    """Whether it is as wide as the page, or half of that."""
    return isinstance(chart, Lines) and chart.is_dense


def _draw_lines(axes: Any, chart: Lines) -> None:
    for number, (name, points) in enumerate(chart.series.items()):
        x, y = zip(*points, strict=True)
        marker = None if chart.is_dense else _MARKERS[number % len(_MARKERS)]
        width = 1.2 if chart.is_dense else 1.6
        colour = _SERIES[number % len(_SERIES)]
        axes.plot(x, y, color=colour, marker=marker, markersize=5, linewidth=width, label=name)
    if chart.log_x:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for points in chart.series.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_ylim(bottom=0)
    for number, (name, level) in enumerate((chart.levels or {}).items(), len(chart.series)):
        colour = _SERIES[number % len(_SERIES)]
        axes.axhline(level, color=colour, linewidth=1.2, linestyle="--", label=f"{name}: {level:.3g}")
    axes.set_xlabel(chart.x_label)
    axes.grid(visible=True)
    names = len(chart.series) + len(chart.levels or {})
    if names > 1:
        axes.figure.legend(loc="outside lower center", ncols=2 if names > 3 else names)


def _draw_bars(axes: Any, chart: Bars) -> None:
    width = 0.7 / len(chart.series)
    for number, (name, values) in enumerate(chart.series.items()):
        places = [place + (number - (len(chart.series) - 1) / 2) * width for place in range(len(chart.categories))]
        errors = list(chart.errors) if chart.errors else None
        bars = axes.bar(
            places, values, width * 0.92, color=_SERIES[number], yerr=errors, ecolor=_INK, capsize=3, label=name
        )
        texts = [_bar_text(value, chart.decimals) for value in values]
        axes.bar_label(bars, texts, padding=2, fontsize=9)
    axes.set_xticks(range(len(chart.categories)), chart.categories)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.14)
    axes.grid(visible=True, axis="y")
    if len(chart.series) > 1:
        axes.figure.legend(loc="outside lower center", ncols=len(chart.series))


def _bar_text(value: float, decimals: int) -> str:
    if decimals == 0 and value < 10:
        return f"{value:.2g}" if value < 1 else f"{value:.1f}"
    return f"{value:,.{decimals}f}"


def _for_a_page(text: str, title: str) -> str:
    """Only the element; it scales with its column, takes the page's colours and font, and says what it is."""
    text = text[text.index("<svg") :].strip()
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"font: ([\w ]*?[\d.]+px)[^;\"]*", r"font: \1 var(--font)", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
