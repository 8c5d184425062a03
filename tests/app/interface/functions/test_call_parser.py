import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.interface.functions.call_parser import CallParser, ForcedCall

NAMES = {"get_weather", "add"}
PARIS = '{"city": "Paris, \\"FR\\" {[", "days": [1, {"a": 2}]}'
ADD = '{"a": 1, "b": -2.5e3}'


def parsed(pieces: Iterable[str], *, only_calls: bool = False) -> tuple[str, list[tuple[str, str]]]:
    parser = CallParser(NAMES, only_calls=only_calls)
    content = ""
    calls: list[list[str]] = []
    ids = set()
    for text, deltas in [*map(parser.feed, pieces), parser.finish()]:
        content += text
        for delta in deltas:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
                ids.add(delta.call_id)
            calls[delta.index][1] += delta.arguments
    assert len(ids) == len(calls) == parser.calls
    return content, [(name, arguments) for name, arguments in calls]


CASES = {
    "plain": ("Hello { world <tool", "Hello { world <tool", []),
    "hermes": (
        f'Let me see. <tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        "Let me see.",
        [("get_weather", PARIS)],
    ),
    "hermes, two, text between": (
        f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>\n'
        f'<tool_call>{{"arguments": {ADD}, "name": "add"}}</tool_call> done',
        "done",
        [("get_weather", PARIS), ("add", ADD)],
    ),
    "llama": (f'<|python_tag|>{{"type": "function", "name": "add", "parameters": {ADD}}}', "", [("add", ADD)]),
    "llama without a tag, two": (
        f'{{"name": "add", "parameters": {ADD}}}; {{"name": "get_weather", "parameters": {PARIS}}}',
        "",
        [("add", ADD), ("get_weather", PARIS)],
    ),
    "mistral": (
        f'[TOOL_CALLS] [{{"name": "add", "arguments": {ADD}}}, {{"name": "get_weather", "arguments": {PARIS}}}]',
        "",
        [("add", ADD), ("get_weather", PARIS)],
    ),
    "new mistral": (
        f"[TOOL_CALLS]add[ARGS]{ADD}[TOOL_CALLS]get_weather{PARIS}",
        "",
        [("add", ADD), ("get_weather", PARIS)],
    ),
    "unknown function": (
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        [],
    ),
    "an object that is no call": ('{"answer": 42, "name": "add"}', '{"answer": 42, "name": "add"}', []),
    "cut off before the name": ('<tool_call>{"nam', '<tool_call>{"nam', []),
    "cut off in the arguments": ('<tool_call>{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
    "no arguments": ('<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    "null arguments": ('<tool_call>{"name": "add", "arguments": null }</tool_call>', "", [("add", "{}")]),
    "an empty string": ('<tool_call>{"name": "add", "arguments": ""}</tool_call>', "", [("add", "{}")]),
    "JSON in a string": (
        f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(PARIS)}}}</tool_call> done',
        "done",
        [("get_weather", PARIS)],
    ),
    "JSON in a string, every character escaped": (
        '[TOOL_CALLS][{"arguments": "' + "".join(f"\\u{ord(c):04x}" for c in PARIS) + '", "name": "get_weather"}]',
        "",
        [("get_weather", PARIS)],
    ),
    "a string that is no JSON": (
        '<tool_call>{"name": "add", "arguments": "a \\"b\\" {c}"}</tool_call>',
        "",
        [("add", '"a \\"b\\" {c}"')],
    ),
    "halves of pairs": (
        '<tool_call>{"name": "add", "arguments": "{\\ud83c\\udf89\\ud83c\\udf89\\udf89\\ud83c\\n}"}</tool_call>',
        "",
        [("add", "{🎉🎉\ufffd\ufffd\n}")],
    ),
    "arguments twice": (f'{{"name": "add", "arguments": {ADD}, "parameters": {{"z": 1}}}}', "", [("add", ADD)]),
    "only a marker": ("<tool_call>", "<tool_call>", []),
    "only markers": ("<tool_call> <tool_call>[TOOL_CALLS][", "<tool_call> <tool_call>[TOOL_CALLS][", []),
}  # fmt: skip


@pytest.mark.parametrize("each", [1, 2, 7, 1000])
@pytest.mark.parametrize("case", CASES)
def test_calls_are_found_however_the_text_is_cut(case: str, each: int) -> None:
    text, content, calls = CASES[case]
    found, found_calls = parsed(text[i : i + each] for i in range(0, len(text), each))
    assert found.strip() == content
    assert [(name, arguments.strip()) for name, arguments in found_calls] == calls


def test_a_list_that_a_grammar_forced() -> None:
    text = json.dumps([{"name": "add", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}}])
    calls = [("add", '{"a": 1}'), ("get_weather", "{}")]
    for end in range(len(text) + 1):
        content, found = parsed(text[:end], only_calls=True)
        assert content == ""
        assert [name for name, _ in found] == [name for name, _ in calls][: len(found)]
    assert found == calls


@pytest.mark.parametrize("end", ["", "\n", "\n</tool", "\n</tool_call>\n<to", "</tool_call> [TOOL", "</tool_call>,"])
def test_an_output_that_is_cut_between_calls_has_no_content(end: str) -> None:
    text = f'<tool_call>\n{{"name": "add",\n "arguments": \n{ADD} \n\n}}{end}'
    for pieces in ([text], list(text)):
        assert parsed(pieces) == ("", [("add", ADD)])


def test_one_function_that_was_named() -> None:
    call = ForcedCall("add")
    deltas = [delta for piece in ('{"a"', ": 1}") for delta in call.feed(piece)[1]]
    assert [delta.name for delta in deltas] == ["add", None, None]
    assert "".join(delta.arguments for delta in deltas) == '{"a": 1}'


PIECES = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "{", "}", '"', "name", "add", ":", ",",
    "[", "]", "\\", " ", '{"name": "add", "arguments": {', "x", "[ARGS]", "<", "\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)))
def test_no_text_breaks_the_parser_and_no_cut_changes_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = parsed([text])
    assert parsed(text) == whole
    if not whole[1] and "tool_call" not in text and "TOOL_CALLS" not in text:
        assert whole[0].strip() == text.strip()
