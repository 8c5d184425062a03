"""The report's page: one HTML file without scripts, and without a link to anything outside of it. Does not measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.report.charts import is_wide, svg
from bench.report.published import LABEL
from bench.report.section import Section
from bench.report.view import View

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class _Shown:
    """A section as the template reads it."""

    name: str
    title: str
    about: str
    status: str
    reason: str
    measured_at: str
    """Empty in old reports, and where nothing was measured."""
    view: View
    charts: Sequence[tuple[str, bool]]
    """SVG, drawn by us from numbers, and whether it is as wide as the page."""


def page(report: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """The page of a report's JSON. Raises ImportError without matplotlib."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    shown = [_shown(section, report["sections"].get(section.name)) for section in sections]
    return environment.get_template("page.html").render(
        about=report["about"], facts=_facts(report["about"]), sections=shown, label=LABEL
    )


def _shown(section: Section, found: Mapping[str, Any] | None) -> _Shown:
    if found is None:
        status, view, measured_at = "not measured", View(), ""
        reason = "it was not asked for (`--only`, `--skip`), or its turn has not come"
    else:
        status, reason, measured_at = found["status"], found.get("reason", ""), found.get("measured_at", "")
        view = section.view(found["result"]) if status == "measured" else View()
    charts = [(svg(chart), is_wide(chart)) for chart in view.charts]
    return _Shown(section.name, section.title, section.about, status, reason, measured_at, view, charts)


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    model = about["model"]
    kind = (
        f"checkpoint; speeds are of its {model['served']} conversion" if model["is_checkpoint"] else "converted model"
    )
    parts = [
        f"{model['weights'] / 1e6:,.0f} million weights", model["family"], model["qtype"], kind,
        f"context {model['context_tokens']:,} tokens",
    ]  # fmt: skip
    if model["is_random"]:
        parts.append("random weights")
    extent = "quick: few points, one round each" if about["quick"] else "full: medians of three rounds"
    return [
        ("model", ", ".join(part for part in parts if part)),
        ("processor", f"{about['cpu']}, {about['tier']}"),
        ("measured", f"{about['date']}, {extent}"),
        ("version", f"Redoubt {about['version']}, commit {about['commit']}"),
        ("command", about["command"]),
    ]
