"""Citations in an answer's text."""

import pytest

from app.interface.generate.planning.passages import citations
from app.interface.wire.responses import FoundPassage

RESULTS = [FoundPassage(file_id=f"file-{number}", filename="a.md", score=1.0, text="A text.") for number in range(1, 6)]


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("Three rents [1], six months [5].", [1, 5]),
        ("Both [1, 2] and [2,4].", [1, 2, 2, 4]),
        ("All of [1-3]; also [4–5].", [1, 2, 3, 4, 5]),
        ("Mixed [1, 3-5; 2].", [1, 3, 4, 5, 2]),
        ("押金为三个月租金【2】［3、4］", [2, 3, 4]),
        ("Not there [6], [0], [1-9], [3-1], [2026], [1.5], [^1], [x].", []),
        ("In part there [2, 9].", [2]),
        ("Code `a[1]` and ``b`[2]``, but [3].", [3]),
        ("```python\na[1]\n```\nThen [2].\n\n~~~\nb[3]\n", [2]),
        ("An open ` tick [1].", [1]),
    ],
)
def test_lists_and_ranges_cite_and_code_does_not(text: str, cited: list[int]) -> None:
    found = citations(text, RESULTS)
    assert [one["result"] + 1 for one in found] == cited
    assert [one["file_id"] for one in found] == [f"file-{number}" for number in cited]


def test_each_ends_where_its_brackets_do() -> None:
    text = "Both [1, 2] and 【3】."
    assert [text[: one["index"]] for one in citations(text, RESULTS)] == ["Both [1, 2]"] * 2 + ["Both [1, 2] and 【3】"]


@pytest.mark.parametrize("text", ["[1," * 40_000, "`" * 40_000, "` " * 20_000, "```\n" * 10_000, "[1][2]`a`" * 5000])
def test_hostile_texts_take_linear_time(text: str) -> None:
    assert len(citations(text, RESULTS)) in (0, 10_000)
