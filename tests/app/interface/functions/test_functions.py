import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from app.interface.functions.requested import functions_of, grammar_of
from app.interface.request.errors import ApiError
from app.interface.wire.chat import ChatCompletionRequest
from app.messages.failures import ConstraintError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client, openai_client
from tests.app.tiny_model import reference_tokenizer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"$defs": {"n": {}}, "properties": {"a": {"$ref": "#/$defs/n"}}}},
    },
    {"type": "function", "function": {"name": "now"}},
]
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def client_of(text: str) -> tuple[AsyncOpenAI, FakeWorker]:
    worker = FakeWorker(lambda _: deltas(reference_tokenizer().encode(text).ids))
    return openai_client(http_app(worker.generate)), worker


def grammar(**fields: Any) -> str | None:
    request = ChatCompletionRequest.model_validate(CHAT | fields)
    made = grammar_of(request, functions_of(request))
    return None if made is None else made.schema


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("auto", 'Ok. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
        ("required", '[{"name": "add", "arguments": {"a": 1}}]'),
        ({"type": "function", "function": {"name": "add"}}, '{"a": 1}'),
    ],
)
async def test_openai_client_gets_calls(choice: Any, text: str, streamed: bool) -> None:
    client, worker = client_of(text)
    calls: list[list[str]] = []
    if streamed:
        reasons = []
        async for chunk in await client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice=choice, stream=True):
            reasons.append(chunk.choices[0].finish_reason)
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                if call.id:
                    calls.append([call.function.name or "", ""])
                calls[call.index][1] += call.function.arguments or ""
        assert reasons[-1] == "tool_calls"
    else:
        answer = await client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice=choice)
        assert answer.choices[0].finish_reason == "tool_calls"
        for made in answer.choices[0].message.tool_calls or []:
            assert made.type == "function"
            calls.append([made.function.name, made.function.arguments])
    assert calls == [["add", '{"a": 1}']]
    assert (worker.requests[0].grammar is None) == (choice == "auto")


async def test_no_function_is_called_where_none_is_to_be() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    client, worker = client_of(text)
    answer = await client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content == text
    assert worker.requests[0].grammar is None


def test_schemas_of_forced_calls_keep_their_references() -> None:
    schema = json.loads(grammar(tools=TOOLS, tool_choice="required") or "")
    assert schema["$defs"]["f0"]["properties"]["a"] == {"$ref": "#/$defs/f0/$defs/n"}
    assert schema["maxItems"] > 1
    one = json.loads(grammar(tools=TOOLS, tool_choice="required", parallel_tool_calls=False) or "")
    assert one["maxItems"] == 1
    assert grammar(response_format={"type": "json_object"}) == '{"type":"object"}'
    assert grammar(response_format={"type": "text"}, tools=TOOLS) is None


BESIDE: dict[str, Any] = {"$ref": "#", "properties": {}}
ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "followed"),
    [
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        (ARGUMENTS, ARGUMENTS | {"additionalProperties": False}),
        (ARGUMENTS | {"additionalProperties": True}, ARGUMENTS | {"additionalProperties": True}),
        (
            {"properties": {"properties": ARGUMENTS}, "$defs": {"x": {"items": ARGUMENTS}}},
            {
                "properties": {"properties": ARGUMENTS | {"additionalProperties": False}},
                "$defs": {"x": {"items": ARGUMENTS | {"additionalProperties": False}}},
                "additionalProperties": False,
            },
        ),
        # A property that one part of a combination does not name may be named by another.
        (ARGUMENTS | {"allOf": [ARGUMENTS]}, ARGUMENTS | {"allOf": [ARGUMENTS]}),
        (ARGUMENTS | {"items": BESIDE}, ARGUMENTS | {"items": BESIDE}),
        ({"properties": {"a": {"not": ARGUMENTS}}}, {"properties": {"a": {"not": ARGUMENTS}}}),
        # A single part combines nothing, and each alternative is complete.
        *(
            (
                {"properties": {"a": {key: [{"type": "null"}, ARGUMENTS][-count:]}}},
                {
                    "properties": {"a": {key: [{"type": "null"}, ARGUMENTS | CLOSED][-count:]}},
                    "additionalProperties": False,
                },
            )
            for key, count in (("anyOf", 2), ("oneOf", 2), ("allOf", 1), ("prefixItems", 2))
        ),
        ({"additionalProperties": ARGUMENTS}, {"additionalProperties": ARGUMENTS | CLOSED}),
        # It requires a property that it does not name.
        (ARGUMENTS | {"required": ["b"]}, ARGUMENTS | {"required": ["b"]}),
        (ARGUMENTS | {"required": [["a"]]}, ARGUMENTS | {"required": [["a"]]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strict", [True, False, None])
def test_objects_that_are_forced_have_no_fields_that_their_schema_does_not_name(
    parameters: Any, followed: Any, strict: bool | None
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}]
    lenient: dict[str, Any] = {} if strict else {"x-guidance": {"lenient": True}}
    made = grammar(tools=tools, tool_choice={"type": "function", "function": {"name": "f"}})
    assert json.loads(made or "") == followed | lenient
    if parameters is None:
        followed = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": parameters, "strict": strict}}
    assert json.loads(grammar(response_format=form) or "") == followed | lenient


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


LONG = "x" * 70_000


def deep_tool() -> dict[str, Any]:
    return {"type": "function", "function": {"name": "g", "parameters": nested(40)}}


def long_tool() -> dict[str, Any]:
    return {"type": "function", "function": {"name": "g", "parameters": {"enum": [LONG]}}}


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS + TOOLS}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"response_format": JSON_SCHEMA, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": JSON_SCHEMA, "min_tokens": 1}, "min_tokens"),
        ({"tools": [*TOOLS, deep_tool()], "tool_choice": "required"}, "tools[2].function.parameters"),
        ({"tools": [*TOOLS, long_tool()], "tool_choice": "required"}, "tools"),
        (
            {"tools": [*TOOLS, long_tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tools[2].function.parameters",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(500)}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [LONG]}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_contradicts_itself_or_is_too_large_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        grammar(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


REFUSED = ConstraintError("The schema can't be followed", "because")
REFUSED.definition = "f1"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"tools": TOOLS, "tool_choice": "required"}, "tools[1].function.parameters"),
        ("chat/completions", {"response_format": JSON_SCHEMA}, "response_format.json_schema.schema"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        (
            "responses",
            {"tools": [{"type": "function", **tool["function"]} for tool in TOOLS], "tool_choice": "required"},
            "tools[1].parameters",
        ),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format.schema"),
    ],
)
async def test_a_schema_that_a_worker_refuses_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    body = fields | ({"model": "tiny", "input": "hi"} if path == "responses" else CHAT)
    async with http_client(http_app(FakeWorker(lambda _: [REFUSED]).generate)) as client:
        for extra in ({}, {"stream": True}):
            response = await client.post(f"/v1/{path}", json=body | extra)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
            assert "because" in response.json()["error"]["message"]


async def test_a_stop_string_inside_a_call_ends_it() -> None:
    def script(_: GenerateRequest) -> list[TokenDelta]:
        return deltas(reference_tokenizer().encode('{"a": STOP').ids)

    client = openai_client(http_app(FakeWorker(script).generate))
    choice: Any = {"type": "function", "function": {"name": "add"}}
    answer = await client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice=choice, stop="STOP")
    made = (answer.choices[0].message.tool_calls or [])[0]
    assert made.type == "function"
    assert made.function.arguments == '{"a": '
