import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import pytest

from bench.report.page import page
from bench.report.published import TYPES
from bench.report.sections import SECTIONS
from bench.report.texts import about, number
from bench.report.view import Bars, Lines
from tests.bench.report.results import RESULTS, report

VOID = {"meta", "br", "hr", "img", "input", "link"}
XML_NAMES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class Reader(HTMLParser):
    """Elements with their attributes, and the text; every element must be closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def html() -> str:
    pytest.importorskip("matplotlib")
    return page(json.loads(json.dumps(report())), SECTIONS)


def attributes(reader: Reader) -> Iterator[tuple[str, str]]:
    for _, found in reader.elements:
        for name, value in found.items():
            yield name, value or ""


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    reader = Reader(html)
    assert not {tag for tag, _ in reader.elements} & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not any(name.startswith("on") for name, _ in attributes(reader))
    targets = {value for name, value in attributes(reader) if name in ("src", "href", "xlink:href", "action")}
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert "@import" not in html
    assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", html))
    assert set(re.findall(r"\w+://[^\s\"'<)]*", html)) <= XML_NAMES


def test_every_section_is_listed_and_there(html: str) -> None:
    reader = Reader(html)
    ids = [found["id"] for tag, found in reader.elements if tag == "section"]
    linked = [(found["href"] or "")[1:] for tag, found in reader.elements if tag == "a"]
    assert ids == linked == [section.name for section in SECTIONS]
    text = " ".join(reader.words)
    for section in SECTIONS:
        assert text.count(section.title) >= 2
    assert "Failed" not in text


def test_names_from_outside_are_text(html: str) -> None:
    assert "a&lt;b&gt;" in html
    assert "<b>" not in html
    assert "A &lt;CPU&gt;" in html


def test_published_figures_are_labelled_and_beside_ours(html: str) -> None:
    reader = Reader(html)
    heads = [found for tag, found in reader.elements if tag == "th" and "group" in (found.get("class") or "")]
    assert len(heads) == 2
    text = " ".join(reader.words)
    assert text.count("published: Llama-2-7B, 48-core Xeon 8468") == 2
    for known in TYPES.values():
        if known.memory_mb != TYPES["fp32"].memory_mb:  # this report has bf16 instead
            assert f"{known.memory_mb:,.0f}" in text or known is TYPES["asym_int4"]
    assert "4,039 ms" in text
    assert "23.900 ± 1.50" in text


def test_what_does_not_fit_the_memory_says_so(html: str) -> None:
    assert "bf16 was not measured: it needs about 90.0 GB of memory, 60.0 GB are available." in html
    assert "<td>bf16</td><td>not measured</td>" in html


def test_charts_follow_the_pages_colours_and_ids_of_several_do_not_clash(html: str) -> None:
    assert html.count("<svg") == sum(len(section.view(RESULTS[section.name]).charts) for section in SECTIONS) == 11
    assert "currentColor" in html
    assert "var(--series-1)" in html
    assert not re.search(r"#0[0-9a]0\d0\d", html)
    clips = re.findall(r'<clipPath id="([^"]+)"', html)
    boxes = re.findall(r'<clipPath id="([^"]+)">\s*<rect ([^>]+)/>', html)
    assert len(dict(boxes)) == len(set(clips))
    by_id: Mapping[str, set[str]] = {name: {box for other, box in boxes if other == name} for name in clips}
    assert all(len(places) == 1 for places in by_id.values())


def test_a_failed_section_has_its_reason_and_leaves_the_others() -> None:
    pytest.importorskip("matplotlib")
    failed = {"status": "failed", "took_s": 1.0, "reason": "the service <did> not start"}
    absent = {"status": "not measured", "took_s": 0.0, "reason": "this machine has one NUMA node"}
    shown = report(concurrency=failed, numa=absent)
    del shown["sections"]["overhead"]
    text = page(shown, SECTIONS)
    assert "Failed: the service &lt;did&gt; not start" in text
    assert "Not measured: this machine has one NUMA node" in text
    assert "Not measured: it was not asked for (<code>--only</code>" in text
    assert 'class="state failed">failed' in text
    assert "23.900 ± 1.50" in text


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_view_has_as_many_cells_as_columns_and_axes_with_names(section: Any) -> None:
    view = section.view(RESULTS[section.name])
    assert view.tables
    for table in view.tables:
        assert {len(row) for row in table.rows} == {len(table.columns) + len(table.published)}
    for chart in view.charts:
        assert chart.title
        assert chart.y_label
        if isinstance(chart, Lines):
            assert chart.x_label
            assert all(chart.series.values())
        if isinstance(chart, Bars):
            assert all(len(values) == len(chart.categories) for values in chart.series.values())


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({"is_checkpoint": False, "text": None}, "a converted folder, so that only its own type could be measured"),
        ({"is_random": True, "text": None}, "weights are random, so that their perplexity means nothing"),
        ({"text": None}, "needs a text"),
        ({}, "bf16 has the checkpoint's own values"),
    ],
)
def test_types_say_what_was_measured(result: dict[str, Any], sentence: str) -> None:
    (section,) = (section for section in SECTIONS if section.name == "types")
    assert sentence in " ".join(section.view(RESULTS["types"] | result).sentences)


def test_a_wheel_without_the_kernels_of_benches_says_so() -> None:
    (section,) = (section for section in SECTIONS if section.name == "machine")
    view = section.view(RESULTS["machine"] | {"rates": None, "why_no_rates": "wheels lack it."})
    assert view.sentences == ["The machine's rates were not measured: wheels lack it."]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (0.1, "0.100"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,234"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_waiting_times_are_round() -> None:
    assert [about(s) for s in (1.0, 44.0, 200.0, 7200.0)] == ["5 seconds", "45 seconds", "3 minutes", "2.0 hours"]
