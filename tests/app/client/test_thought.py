"""What a model thinks, and what it says."""

import pytest

from app.client.thought import Parts, parts, spoken


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Parts("", "", is_thinking=False)),
        ("Yes.", Parts("", "Yes.", is_thinking=False)),
        ("<thi", Parts("", "", is_thinking=False)),
        ("<this>", Parts("", "<this>", is_thinking=False)),
        ("\n<think>\nhm", Parts("hm", "", is_thinking=True)),
        ("<think>hm </think>\n\nYes.", Parts("hm", "Yes.", is_thinking=False)),
        ("hm </think> Yes.", Parts("hm", "Yes.", is_thinking=False)),
    ],
)
def test_parts(text: str, expected: Parts) -> None:
    assert parts(text) == expected


def test_spoken() -> None:
    assert spoken("<think>hm</think>\nYes. \n") == "Yes."
    assert spoken("<think>hm") == ""
