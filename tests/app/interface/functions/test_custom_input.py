import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.interface.functions.custom_input import CustomInput

PATCH = '*** Begin Patch\n*** Add File: ä.py\n+print("a\\\\b 🎉")\n*** End Patch'


def read(arguments: str, each: int = 1000) -> str:
    decoder = CustomInput()
    pieces = [decoder.feed(arguments[i : i + each]) for i in range(0, len(arguments), each)]
    return "".join(pieces) + decoder.finish()


@pytest.mark.parametrize("each", [1, 2, 7, 1000])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_the_input_is_what_the_string_says_however_it_is_cut(each: int, is_ascii: bool) -> None:
    assert read(json.dumps({"input": PATCH}, ensure_ascii=is_ascii), each) == PATCH


@given(text=st.text(), each=st.integers(1, 9), is_ascii=st.booleans())
def test_any_text(text: str, each: int, is_ascii: bool) -> None:
    assert read(json.dumps({"input": text}, ensure_ascii=is_ascii).replace("\\ud", "\\uD"), each) == text


def test_it_comes_before_the_call_is_whole() -> None:
    decoder = CustomInput()
    assert decoder.feed('{"input": "*** Begin') == "*** Begin"
    assert decoder.feed(" Patch\\") == " Patch"
    assert decoder.feed("n+a") == "\n+a"
    assert decoder.finish() == ""


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"patch": "text"}', "text"),
        ('"text\\n"', "text\n"),
        ("{}", ""),
        ('{"a": "one", "b": "two"}', '{"a": "one", "b": "two"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"a": "cut', '{"a": "cut'),
        ('{"a": "\\ud800"}', "�"),
        ('{"input": "\nraw"}', "\nraw"),
        ('{"input": "text", "more": "x"}', "text"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_other_forms_of_arguments_lose_no_text(arguments: str, given: str) -> None:
    assert read(arguments) == given
