"""Calls with values as text: Qwen3-Coder's, GLM's and Gemma 4's, split at any place."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.interface.functions.call_parser import CallParser
from app.interface.functions.dialects import parsed_dialects

MCP = f"mcp:{'server' * 15}/a.b-c"
"""A name as gateways of MCP servers make it."""
SCHEMAS: dict[str, Any] = {
    "write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "lines": {"type": "integer"},
            "tags": {"type": "array"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "now": {"type": "object", "properties": {}},
    "free": None,
    MCP: None,
}
CODE = 'if a < b:\n    print("</div> ü 日")\n\nx = "</para"'


def parsed(pieces: Iterable[str], **options: Any) -> tuple[str, list[tuple[str, str]], list[bool]]:
    parser = CallParser(SCHEMAS, schemas=SCHEMAS, **options)
    content, calls, done = "", list[list[str]](), list[bool]()
    for text, deltas in [*map(parser.feed, pieces), parser.finish()]:
        content += text
        for delta in deltas:
            if delta.name is not None:
                calls.append([delta.name, ""])
                done.append(False)
            calls[delta.index][1] += delta.arguments
            done[delta.index] = done[delta.index] or delta.done
    return content, [(name, arguments) for name, arguments in calls], done


def qwen(name: str, **values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def glm(name: str, line: str = "\n", **values: str) -> str:
    pairs = (f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in values.items())
    return f"<tool_call>{name}{line}{''.join(pairs)}</tool_call>"


def glm_47(name: str, **values: str) -> str:
    return glm(name, "", **values)


def gemma(name: str, **values: str) -> str:
    return f"<|tool_call>call:{name}{{{','.join(f'{key}:{value}' for key, value in values.items())}}}<tool_call|>"


ALL = {"path": CODE, "lines": "12", "tags": '["a", {"b": 1}]', "note": "null"}
VALUES = {"path": CODE, "lines": 12, "tags": ["a", {"b": 1}], "note": None}
CASES: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {}
for written in (qwen, glm, glm_47):
    CASES |= {
        f"{written.__name__}: typed": (f"Ok. {written('write', **ALL)}", "Ok. ", [("write", VALUES)]),
        f"{written.__name__}: two": (
            f"{written('now')}\n{written('write', lines='1', path='')} done",
            "done",
            [("now", {}), ("write", {"lines": 1, "path": ""})],
        ),
        f"{written.__name__}: no schema": (written("free", a="1", b="x y"), "", [("free", {"a": 1, "b": "x y"})]),
        f"{written.__name__}: lines of text": (
            written("write", path="\n\n a\n\n"),
            "",
            [("write", {"path": "\n\n a\n\n"})],
        ),
        f"{written.__name__}: a long name": (written(MCP, a="1"), "", [(MCP, {"a": 1})]),
        f"{written.__name__}: another function": (written("rm", path="/"), written("rm", path="/"), []),
        f"{written.__name__}: then JSON": (
            f'{written("now")}<tool_call>{{"name": "free", "arguments": {{"a": 2}}}}</tool_call>',
            "",
            [("now", {}), ("free", {"a": 2})],
        ),
    }
STRING = '<|"|>'
CASES |= {
    "qwen: an end mark in a value": (
        qwen("write", path="</parameter> ends it, </function> the call", lines="2"),
        "",
        [("write", {"path": "</parameter> ends it, </function> the call", "lines": 2})],
    ),
    "qwen: without its last end": (
        "<tool_call>\n<function=write>\n<parameter=lines>\n3\n</parameter>\n</tool_call>",
        "",
        [("write", {"lines": 3})],
    ),
    "qwen: in one line": (
        "<tool_call><function=write><parameter=path>a</parameter><parameter=lines>3</parameter></function></tool_call>",
        "",
        [("write", {"path": "a", "lines": 3})],
    ),
    "glm: an end mark in a value": (
        glm("write", path="a</arg_value>b</tool_call> c", lines="2"),
        "",
        [("write", {"path": "a</arg_value>b</tool_call> c", "lines": 2})],
    ),
    "gemma: typed": (
        f"Ok. {gemma('write', path=f'{STRING}{CODE}{STRING}', lines='12', note='null', tags='[1,true,{}]')}",
        "Ok. ",
        [("write", {"path": CODE, "lines": 12, "note": None, "tags": [1, True, {}]})],
    ),
    "gemma: nested": (
        gemma("free", a=f"{{b:[{STRING}x{STRING},{{c:-1.5e3}}],{STRING}d e{STRING}:{STRING}{{,}}:{STRING}}}", f="no"),
        "",
        [("free", {"a": {"b": ["x", {"c": -1500.0}], "d e": "{,}:"}, "f": "no"})],
    ),
    "gemma: JSON": (
        '<|tool_call>call:free{"a": "b\\"}", "c": [1, "x"], "d": {}}<tool_call|>',
        "",
        [("free", {"a": 'b"}', "c": [1, "x"], "d": {}})],
    ),
    "gemma: two": (f"{gemma('now')}{gemma('free', a='1')}", "", [("now", {}), ("free", {"a": 1})]),
    "gemma: a long name": (gemma(MCP, a="1"), "", [(MCP, {"a": 1})]),
    "gemma: another function": (gemma("rm", a="1"), gemma("rm", a="1"), []),
    "gemma: a quote that is none": (
        gemma("write", path=f'{STRING}<| <|" |> <|"|{STRING}'),
        "",
        [("write", {"path": '<| <|" |> <|"|'})],
    ),
    "no call": ("<tool_call>\nSee <function=now", "<tool_call>\nSee <function=now", []),
    "a name only": ("<tool_call>now and then", "<tool_call>now and then", []),
    "Gemma's mark only": ("<|tool_call>call me", "<|tool_call>call me", []),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_are_found_and_typed_wherever_the_text_is_cut(case: str) -> None:
    text, content, calls = CASES[case]
    whole = parsed([text])
    assert [(name, json.loads(arguments)) for name, arguments in whole[1]] == calls
    assert whole[0].strip() == content.strip()
    assert all(whole[2])
    assert parsed(text) == whole
    for at in range(1, len(text)):
        assert parsed([text[:at], text[at:]]) == whole, text[:at]


@pytest.mark.parametrize("case", CASES)
def test_an_output_that_ends_within_a_call_has_the_beginning_of_its_arguments(case: str) -> None:
    text, _, calls = CASES[case]
    (_, whole, _) = parsed([text])
    for end in range(len(text)):
        for pieces in ([text[:end]], text[:end]):
            _, found, done = parsed(pieces)
            assert [name for name, _ in found] == [name for name, _ in calls][: len(found)]
            for (_, arguments), (_, expected), is_done in zip(found, whole, done, strict=False):
                assert not is_done or arguments == expected
                if "an end mark" not in case and "quote that is none" not in case:  # the cut matters there
                    partial = arguments.removesuffix('"') if not is_done else arguments
                    assert expected.startswith(partial) or json_begins(expected, partial), (text[:end], arguments)


def json_begins(expected: str, partial: str) -> bool:
    """Whether they are the same up to a last value that is not valid JSON yet."""
    head = partial.rsplit(": ", 1)[0]
    return expected.startswith(head)


def test_qwens_models_may_forget_their_first_mark() -> None:
    dialects = parsed_dialects("<function=f><parameter=a>")
    call = qwen("write", **ALL).removeprefix("<tool_call>\n")
    for text, content in (
        (call, ""),
        (f"Ok. {call}", "Ok. "),
        (f"See <function= or <function=rm>. {call}", "See <function= or <function=rm>. "),
    ):
        for pieces in ([text], list(text)):
            found, calls, done = parsed(pieces, dialects=dialects)
            assert (found, done) == (content, [True])
            assert json.loads(calls[0][1]) == VALUES
    assert parsed([call]) == (call, [], [])


def test_texts_are_streamed_as_they_come() -> None:
    parser = CallParser(SCHEMAS, schemas=SCHEMAS)
    fed = [parser.feed(text)[1] for text in ("<tool_call>\n<function=write>", "\n<parameter=path>\nab", "c\n", "d")]
    assert [[delta.arguments for delta in deltas] for deltas in fed] == [[""], ['{"path": "ab'], ["c"], ["\\nd"]]
    parser = CallParser(SCHEMAS, schemas=SCHEMAS)
    fed = [parser.feed(text)[1] for text in (f"<|tool_call>call:write{{path:{STRING}ab", "c", "<|", "d")]
    assert [[delta.arguments for delta in deltas] for deltas in fed] == [["", '{"path": "ab'], ["c"], [], ["<|d"]]


def test_nothing_is_read_after_the_only_call() -> None:
    for text in (qwen("now"), glm("now"), gemma("now")):
        content, calls, _ = parsed([f"{text} {text} bye"], parallel=False)
        assert (content, calls) == ("", [("now", "{}")])


PIECES = [
    "<tool_call>", "</tool_call>", "<function=", "write", ">", "<parameter=", "path", "lines", "</parameter>",
    "</function>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call>", "<tool_call|>", "call:",
    "now", "{", "}", ":", ",", '<|"|>', '"', "\\", "[", "]", "\n", " ", "1", "<", "|",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_no_text_breaks_the_parser_and_no_cut_changes_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parsed(text) == parsed([text])


# --- LFM2 ----------------------------------------------------------------------------------------------------------

LISTED = [
    (
        """<|tool_call_start|>[write(path="a, b)", lines=3, tags=["x", 'y'], note=None), now()]<|tool_call_end|>""",
        [("write", {"path": "a, b)", "lines": 3, "tags": ["x", "y"], "note": None}), ("now", {})],
    ),
    ("""<|tool_call_start|>[free(a='it's', b={"c": true}, d=True)]<|tool_call_end|>""",
     [("free", {"a": "it's", "b": {"c": True}, "d": True})]),
    ("""<|tool_call_start|>[free(a="line\\n\\"q\\"", b=-1.5e3)]""", [("free", {"a": 'line\n"q"', "b": -1500.0})]),
    ("<|tool_call_start|>[ free( a = nowhere ) ]<|tool_call_end|>", [("free", {"a": "nowhere"})]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), LISTED)
@pytest.mark.parametrize("each", [1, 3, 1000])
def test_calls_as_python_writes_them(text: str, calls: list[Any], each: int) -> None:
    content, found, _ = parsed(text[i : i + each] for i in range(0, len(text), each))
    assert (content, [(name, json.loads(arguments)) for name, arguments in found]) == ("", calls)


def test_a_call_of_python_that_a_limit_cuts_has_what_it_wrote() -> None:
    _, calls, done = parsed(["<|tool_call_start|>[write(lines=3, path='a/b"])
    assert (calls, done) == ([("write", '{"lines": 3, "path": "a/b')], [False])


def test_an_unknown_function_of_python_is_text() -> None:
    text = "<|tool_call_start|>[nothing(a=1)]<|tool_call_end|>"
    assert parsed([text])[:2] == (text, [])
