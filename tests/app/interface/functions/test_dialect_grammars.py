"""Strict functions in each dialect: what their grammar allows, with marks as text, tokens or special tokens."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.interface.functions.call_grammar import call_grammar
from app.interface.functions.call_parser import CallParser
from app.interface.functions.dialect import CallableFunction, Dialect, json_rule
from app.interface.functions.dialects import HERMES, LLAMA, MISTRAL
from app.interface.functions.gemma import GEMMA
from app.interface.functions.tagged import GLM, QWEN, UNMARKED
from app.workers.constraints import Constraints
from tests.app.interface.functions.test_written_calls import glm, glm_47, qwen
from tests.app.marked_tokens import MarkedTokens

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where to."},
        "lines": {"type": "integer"},
        "mode": {"type": "string", "enum": ["new", "old"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["path", "lines"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "integer"}},
}
PATTERN: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[a-z]+$"}},
    "required": ["id"],
    "additionalProperties": False,
}
FUNCTIONS = (
    CallableFunction("write", SCHEMA),
    CallableFunction("find", PATTERN),
    CallableFunction("free", {"type": "object"}),
    CallableFunction("now", {"type": "object", "properties": {}, "additionalProperties": False}),
)
NAMES = (
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|tool_call>", "<tool_call|>", '<|"|>', "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
)  # fmt: skip


@pytest.fixture(scope="module", params=[None, False, True], ids=["text", "token", "special token"])
def marked(request: pytest.FixtureRequest) -> MarkedTokens:
    return MarkedTokens(NAMES, request.param)


@pytest.fixture(scope="module")
def made(marked: MarkedTokens) -> Iterator[Constraints]:
    with marked.constraints() as constraints:
        yield constraints


def allows(marked: MarkedTokens, made: Constraints, dialect: Dialect, text: str, **options: Any) -> bool:
    unmarked = [UNMARKED] if dialect is QWEN else []
    dialects = [dialect, *unmarked, *(one for one in (HERMES, MISTRAL, LLAMA, GEMMA) if one.mark != dialect.mark)]
    grammar = call_grammar(FUNCTIONS, marked.added, **{"parallel": True, "dialects": dialects, **options})
    return marked.lets_through(made, grammar, text)


def as_json(values: dict[str, str]) -> str:
    typed = {key: json.loads(value) if value and value[0] in "[1" else value for key, value in values.items()}
    return json.dumps(typed, ensure_ascii=False)


def hermes(name: str, **values: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {as_json(values)}}}\n</tool_call>'


def gemma_json(name: str, **values: str) -> str:
    return f"<|tool_call>call:{name}{as_json(values)}<tool_call|>"


WRITTEN = {
    "hermes": (HERMES, hermes),
    "qwen": (QWEN, qwen),
    "glm": (GLM, glm),
    "glm 4.7": (GLM, glm_47),
    "gemma": (GEMMA, gemma_json),
}
GOOD: list[dict[str, str]] = [
    {"path": "a b/ü", "lines": "1"},
    {"path": "", "lines": "1"},
    {"path": "if a < b:\n  x", "lines": "12", "mode": "new", "tags": "[1, 2]", "note": "n"},
    {"path": "a", "lines": "1", "note": "<b>"},
]
BAD: list[dict[str, str]] = [
    {"path": "a"},
    {"path": "a", "lines": "x"},
    {"path": "a", "lines": "1", "mode": "other"},
    {"path": "a", "lines": "1", "tags": '["a"]'},
    {"path": "a", "lines": "1", "more": "b"},
]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("values", GOOD, ids=range(len(GOOD)))
def test_calls_that_follow_their_schema_are_let_through_and_read(
    marked: MarkedTokens, made: Constraints, name: str, values: dict[str, str]
) -> None:
    dialect, written = WRITTEN[name]
    call = written("write", **values)
    for text in (call, f"Ok: {call}", f"{call}\n{written('now')}\n{call}", f"{written('free', any='thing')}"):
        assert allows(marked, made, dialect, text), text
    parser = CallParser(["write"], schemas={"write": SCHEMA}, bare="strict")
    deltas = parser.feed(call)[1]
    arguments = json.loads("".join(delta.arguments for delta in deltas))
    texts = {"path", "mode", "note"}
    assert arguments == {key: value if key in texts else json.loads(value) for key, value in values.items()}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("values", BAD, ids=range(len(BAD)))
def test_calls_against_their_schema_are_never_drawn(
    marked: MarkedTokens, made: Constraints, name: str, values: dict[str, str]
) -> None:
    dialect, written = WRITTEN[name]
    for text in (written("write", **values), f"Ok: {written('write', **values)}"):
        assert not allows(marked, made, dialect, text), text


@pytest.mark.parametrize("name", WRITTEN)
def test_calls_of_other_functions_and_text_after_calls_are_never_drawn(
    marked: MarkedTokens, made: Constraints, name: str
) -> None:
    dialect, written = WRITTEN[name]
    assert not allows(marked, made, dialect, written("rm", path="a"))
    assert not allows(marked, made, dialect, f"{written('now')} bye")
    assert not allows(marked, made, dialect, f"{dialect.mark} bye")
    assert not allows(marked, made, dialect, f"{written('now')}{written('now')}", parallel=False)
    assert allows(marked, made, dialect, "Plain text, < b > {")


def test_a_call_of_qwen_without_its_first_mark(marked: MarkedTokens, made: Constraints) -> None:
    good, bad = (qwen("write", path="a", **more).removeprefix("<tool_call>\n") for more in ({"lines": "1"}, {}))
    for text, is_good in (
        (good, True),
        (f"Ok: {good}", True),
        (good.removesuffix("\n</tool_call>"), True),
        (f"{good}\n{good}\n{qwen('now')}", True),
        (bad, False),
        (f"Ok: {bad}", False),
        (f"{good}\n{bad}", False),
        (f"{good} bye", False),
        (good.replace("write", "find"), False),
        (good.replace("write", "rm"), False),
    ):
        assert allows(marked, made, QWEN, text) is is_good, text


@pytest.mark.parametrize("name", ["qwen", "glm"])
def test_what_tags_can_not_express_is_called_in_json(marked: MarkedTokens, made: Constraints, name: str) -> None:
    dialect, written = WRITTEN[name]
    for value, is_good in (("abc", True), ("1", False)):
        call = f'<tool_call>\n{{"name": "find", "arguments": {{"id": "{value}"}}}}\n</tool_call>'
        assert allows(marked, made, dialect, call) is is_good
        assert not allows(marked, made, dialect, written("find", id=value))


@pytest.mark.parametrize("name", WRITTEN)
def test_with_a_format_there_is_no_text_but_calls_and_the_answer(
    marked: MarkedTokens, made: Constraints, name: str
) -> None:
    dialect, written = WRITTEN[name]
    call = written("write", path="a", lines="1")
    answer = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    for text, is_good in ((call, True), ('{"a": 1}', True), ("Ok", False), (f"Ok {call}", False)):
        assert allows(marked, made, dialect, text, answer=json_rule(answer)) is is_good


@pytest.mark.parametrize(
    "one",
    [
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "string", "minLength": 2},
        {"type": "string", "format": "date"},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 1},
        {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
        {"enum": ["a", 1]},
        {"enum": ["a</parameter>", "b</arg_value>"]},
        {},
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
    ],
    ids=str,
)
def test_only_schemas_that_tags_can_hold_have_tags(one: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": one}, "additionalProperties": False}
    function = CallableFunction("f", schema)
    for dialect in (QWEN, GLM):
        grammar = call_grammar([function], {}, parallel=True, dialects=[dialect])
        assert f"\n{dialect.name}_0:" not in grammar
        plain = {**schema, "properties": {"a": {"type": "string"}}}
        grammar = call_grammar([CallableFunction("f", plain)], {}, parallel=True, dialects=[dialect])
        assert f"\n{dialect.name}_0:" in grammar


def test_a_text_that_may_be_null_and_a_constant(marked: MarkedTokens, made: Constraints) -> None:
    properties = {"a": {"enum": ["x", None]}, "b": {"const": "y"}, "c": {"anyOf": [{"enum": ["z"]}, {"type": "null"}]}}
    schema = {"type": "object", "properties": properties, "required": ["a", "b", "c"], "additionalProperties": False}
    for dialect, written in ((QWEN, qwen), (GLM, glm)):
        grammar = call_grammar([CallableFunction("f", schema)], marked.added, parallel=True, dialects=[dialect])
        for values, is_good in (
            ({"a": "null", "b": "y", "c": "null"}, True),
            ({"a": "x", "b": "y", "c": "z"}, True),
            ({"a": "x", "b": "n", "c": "z"}, False),
            ({"a": "w", "b": "y", "c": "z"}, False),
        ):
            assert marked.lets_through(made, grammar, written("f", **values)) is is_good
