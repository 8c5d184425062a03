"""Tools of `/v1/responses` other than plain functions, and further fields of coding agents."""

import json
from typing import Any

import httpx2
import pytest
from openai.types.responses import ResponseCustomToolCall, ResponseFunctionToolCall

from app.interface.functions.response_tools import alias_of
from app.interface.generate.planning.responses import chat_request
from app.interface.wire.responses import ResponseRequest
from app.messages.failures import ConstraintError
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client, never, openai_client
from tests.app.tiny_model import reference_tokenizer, tiny_model

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"
EXEC: Any = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
}
APPLY_PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"},
}
AGENTS: Any = {
    "type": "namespace",
    "name": "multi_agent",
    "description": "Tools for other agents.",
    "tools": [{**EXEC, "name": "spawn"}, {**EXEC, "name": "close", "defer_loading": True}],
}
SEARCH = {"type": "web_search", "external_web_access": False, "search_context_size": "low"}
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "permissions"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "environment"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "edit a.txt"}]},
    ],
    "tools": [EXEC, APPLY_PATCH, AGENTS, SEARCH, {"type": "image_generation", "output_format": "png"}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": False,
    "include": ["reasoning.encrypted_content"],
    "service_tier": "flex",
    "prompt_cache_key": "0199-thread",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "some", "x-codex-turn-metadata": json.dumps({"a": "b" * 600})},
}
"""A request like Codex's."""


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def saying(text: str, each: int = 3) -> FakeWorker:
    return FakeWorker(lambda _: deltas(reference_tokenizer().encode(text).ids, each=each))


def prompt_of(request: GenerateRequest) -> str:
    text: str = reference_tokenizer().decode(list(request.prompt_token_ids), skip_special_tokens=False)
    return text


async def post(worker: FakeWorker, body: dict[str, Any], context_tokens: int = 8192) -> httpx2.Response:
    app = http_app(worker.generate, model=tiny_model(context_tokens=context_tokens))
    async with http_client(app) as client:
        return await client.post("/v1/responses", json=CODEX | body)


async def test_what_codex_asks_is_answered() -> None:
    worker = saying("Done.")
    response = await post(worker, {})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["output"][0]["content"][0]["text"] == "Done."
    assert [tool["type"] for tool in answer["tools"]] == ["function", "custom", "namespace"]
    assert (answer["reasoning"]["effort"], answer["text"]["verbosity"]) == ("medium", "low")
    assert answer["service_tier"] == "default"
    prompt = prompt_of(worker.requests[0])
    for shown in ("exec_command", "apply_patch", "multi_agent__spawn", "multi_agent__close", "begin_patch hunk+"):
        assert shown in prompt
    assert prompt.count("Tools for other agents.") == 1
    assert "web_search" not in prompt


@pytest.mark.parametrize("each", [1, 4, 1000])
async def test_a_custom_tool_gets_its_text(each: int) -> None:
    worker = saying(f"I edit it. {called('apply_patch', {'input': PATCH})}", each)
    client = openai_client(http_app(worker.generate, model=tiny_model(context_tokens=8192)))
    done, pieces = "", ""
    async with client.responses.stream(model="tiny", input="hi", tools=[APPLY_PATCH]) as stream:
        async for event in stream:
            if event.type == "response.custom_tool_call_input.delta":
                pieces += event.delta
            if event.type == "response.custom_tool_call_input.done":
                done = event.input
        streamed = await stream.get_final_response()
    assert (pieces, done) == (PATCH, PATCH)
    whole = await client.responses.create(model="tiny", input="hi", tools=[APPLY_PATCH])
    for answer in (streamed, whole):
        message, call = answer.output
        assert message.type == "message"
        assert isinstance(call, ResponseCustomToolCall)
        assert (call.name, call.input, call.namespace) == ("apply_patch", PATCH, None)


async def test_a_custom_tool_call_that_is_cut_is_incomplete() -> None:
    text = called("apply_patch", {"input": PATCH})[:70]
    worker = FakeWorker(lambda _: deltas(reference_tokenizer().encode(text).ids, finish_reason="length"))
    answer = (await post(worker, {})).json()
    (call,) = answer["output"]
    assert (call["type"], call["status"], answer["status"]) == ("custom_tool_call", "incomplete", "incomplete")
    assert call["input"]
    assert PATCH.startswith(call["input"])


async def test_a_forced_custom_tool() -> None:
    worker = saying(json.dumps({"input": PATCH}))
    answer = (await post(worker, {"tool_choice": {"type": "custom", "name": "apply_patch"}})).json()
    (call,) = answer["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    assert answer["tool_choice"] == {"type": "custom", "name": "apply_patch"}
    assert json.loads(worker.requests[0].grammar or "")["required"] == ["input"]


async def test_a_call_of_a_namespace_says_which() -> None:
    client = openai_client(http_app(saying(called("multi_agent__spawn", {"cmd": "ls"})).generate, model=_LARGE))
    answer = await client.responses.create(model="tiny", input="hi", tools=[AGENTS, EXEC])
    (call,) = answer.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.namespace, json.loads(call.arguments)) == ("spawn", "multi_agent", {"cmd": "ls"})


async def test_a_plain_call_has_no_namespace() -> None:
    answer = (await post(saying(called("exec_command", {"cmd": "ls"})), {})).json()
    assert "namespace" not in answer["output"][0]


_LARGE = tiny_model(context_tokens=8192)
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "edit it", "internal_chat_message_metadata_passthrough": {"turn_id": "t1"}},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "I think"}],
        "encrypted_content": "gAAAA",
        "status": "completed",
    },
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "phase": "commentary",
        "content": [
            {"type": "output_text", "text": "I edit it.", "annotations": [{"type": "url_citation"}], "logprobs": []}
        ],
    },
    {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "status": "completed",
        "call_id": "c1",
        "name": "apply_patch",
        "input": PATCH,
    },
    {
        "type": "function_call",
        "call_id": "c2",
        "name": "spawn",
        "namespace": "multi_agent",
        "arguments": '{"cmd": "ls"}',
    },
    {"type": "custom_tool_call_output", "call_id": "c1", "name": "apply_patch", "output": "Success."},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a.txt"}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
    {"role": "user", "content": "go on"},
]


def test_items_become_messages_and_what_only_answers_have_is_dropped() -> None:
    request = ResponseRequest.model_validate({"model": "tiny", "input": HISTORY})
    first, step, *results, last = chat_request(request).messages
    assert (first.content, last.content) == ("edit it", "go on")
    assert (step.role, step.content, step.reasoning_content) == ("assistant", "I edit it.", "I think")
    custom, function = step.tool_calls or []
    assert (custom.id, custom.function.name) == ("c1", "apply_patch")
    assert json.loads(custom.function.arguments or "") == {"input": PATCH}
    assert (function.function.name, function.function.arguments) == ("multi_agent__spawn", '{"cmd": "ls"}')
    assert [(one.role, one.tool_call_id, one.content) for one in results] == [
        ("tool", "c1", "Success."),
        ("tool", "c2", "a.txt"),
    ]


def test_a_summary_stands_for_a_thought_that_is_not_given() -> None:
    items = [{**HISTORY[1], "content": None}, HISTORY[2]]
    (message,) = chat_request(ResponseRequest.model_validate({"model": "tiny", "input": items})).messages
    assert message.reasoning_content == "short"


async def test_an_agents_history_is_answered() -> None:
    worker = saying("Done.")
    response = await post(worker, {"input": HISTORY})
    assert response.status_code == 200, response.text
    assert "*** Add File: a.txt" in prompt_of(worker.requests[0])


async def test_an_answer_with_calls_is_handed_back_as_it_was() -> None:
    text = f"{called('apply_patch', {'input': PATCH})}\n{called('multi_agent__spawn', {'cmd': 'ls'})}"
    output = (await post(saying(text), {})).json()["output"]
    results = [
        {"type": "custom_tool_call_output", "call_id": output[0]["call_id"], "output": "ok"},
        {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "ok"},
    ]
    worker = saying("Done.")
    response = await post(worker, {"input": [*CODEX["input"], *output, *results]})
    assert response.status_code == 200, response.text
    assert "multi_agent__spawn" in prompt_of(worker.requests[0]).split("edit a.txt")[1]


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "name", "alias"),
    [(None, "f", "f"), ("", "f", "f"), ("n", "f", "n__f"), ("mcp__n__", "f", "mcp__n__f")],
)
def test_the_names_of_functions_in_namespaces(namespace: str | None, name: str, alias: str) -> None:
    assert alias_of(name, namespace) == alias


def test_a_long_name_is_shortened_and_stays_its_own() -> None:
    first, second = alias_of("f" * 60, "n" * 60), alias_of("f" * 60 + "g", "n" * 60)
    assert len(first) == len(second) == 64
    assert first != second


def test_one_name_twice_is_refused_but_not_in_another_namespace() -> None:
    tools = [EXEC, {**AGENTS, "tools": [EXEC]}]
    assert len(chat_request(ResponseRequest.model_validate({**CODEX, "tools": tools})).tools or ()) == 2


# --- grammars, choices ---------------------------------------------------------------------------------------------


REGEX = {"type": "custom", "name": "day", "format": {"type": "grammar", "syntax": "regex", "definition": "mon|tue"}}


async def test_a_regular_expression_holds_the_input() -> None:
    worker = saying("Done.")
    await post(worker, {"tools": [REGEX]})
    assert '"pattern":"^(?:mon|tue)$"' in (worker.requests[0].grammar or "")


async def test_an_expression_that_cannot_be_followed_is_named() -> None:
    refused = ConstraintError("the grammar can't be compiled", "no such thing")
    refused.definition = "f1"
    worker = FakeWorker(lambda _: [refused])
    tools = [EXEC, {**AGENTS, "tools": [REGEX]}]
    response = await post(worker, {"tools": tools, "tool_choice": "required"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1].tools[0].format.definition"


async def test_the_place_of_a_schema_that_is_too_deep_is_the_requests_own() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    tools = [SEARCH, {**AGENTS, "tools": [EXEC, {**EXEC, "name": "deep", "parameters": deep, "strict": True}]}]
    response = await post(saying("x"), {"tools": tools})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1].tools[1].parameters"


async def test_allowed_tools_are_the_only_ones() -> None:
    worker = saying("[" + json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}}) + "]")
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}
    answer = (await post(worker, {"tool_choice": choice})).json()
    assert answer["output"][0]["input"] == PATCH
    assert answer["tool_choice"] == choice
    assert "exec_command" not in prompt_of(worker.requests[0])


async def test_truncation_drops_the_oldest_turns() -> None:
    turns = [{"role": role, "content": f"{role} {i} " + "x" * 60} for i in range(9) for role in ("user", "assistant")]
    body = {"input": [*turns, {"role": "user", "content": "the last"}], "tools": []}
    refused = await post(saying("x"), body, context_tokens=512)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    worker = saying("Done.")
    response = await post(worker, body | {"truncation": "auto"}, context_tokens=512)
    assert response.status_code == 200, response.text
    assert response.json()["truncation"] == "auto"
    prompt = prompt_of(worker.requests[0])
    assert "You are a coding agent." in prompt
    assert "user 0" not in prompt
    assert "user 8" in prompt
    assert "the last" in prompt
    assert worker.requests[0].max_new_tokens == 64


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "telepathy"}]}, "tools[0]"),
        ({"tools": [{**AGENTS, "tools": [SEARCH]}]}, "tools[0].tools[0]"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "name": "exec_command"}}, "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}},
            "tool_choice.tools[0]",
        ),
        ({"tools": [{**APPLY_PATCH, "format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format"),
        ({"tools": [{**APPLY_PATCH, "format": {"type": "text", "syntax": "lark"}}]}, "tools[0].format"),
        ({"tools": [{**AGENTS, "name": f"n{i}"} for i in range(513)]}, "tools"),
        ({"tools": [APPLY_PATCH, {**EXEC, "name": "apply_patch"}]}, "tools"),
        ({"truncation": "middle"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"client_metadata": {"a": 1}}, "client_metadata.a"),
        ({"input": [{"type": "local_shell_call_output", "id": "x", "output": "x"}]}, "input[0]"),
        ({"input": [HISTORY[-2]], "instructions": None}, "input"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0]"),
    ],
)
async def test_refusals_name_the_place(fields: dict[str, Any], param: str) -> None:
    async with http_client(http_app(never, model=_LARGE)) as client:
        response = await client.post("/v1/responses", json=CODEX | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
