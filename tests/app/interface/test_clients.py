"""What clients send beside what OpenAI's own does: each was met in one, and refused."""

from typing import Any

import pytest

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client
from tests.app.tiny_model import reference_tokenizer, tiny_model

MODEL = tiny_model(context_tokens=8192)
F: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
G: Any = {"type": "function", "function": {"name": "g"}}
NAMED = {"type": "function", "function": {"name": "f"}}
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["answer"]}}}
QUESTION = {"role": "user", "content": "hi"}


async def post(path: str, **fields: Any) -> tuple[FakeWorker, Any]:
    """The worker that was asked, and the answer."""
    worker = FakeWorker(lambda _: deltas(reference_tokenizer().encode("{}").ids))
    given = {"messages": [QUESTION]} if path == "chat/completions" else {"input": "hi"}
    async with http_client(http_app(worker.generate, model=MODEL)) as client:
        response = await client.post(f"/v1/{path}", json={"model": "tiny"} | given | fields)
    assert response.status_code == 200, response.text
    return worker, response.json()


def prompt_of(worker: FakeWorker) -> str:
    return MODEL.text(worker.requests[-1].prompt_token_ids)


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_forced_call_wins_over_a_format(choice: Any) -> None:
    worker, _ = await post("chat/completions", tools=[F], tool_choice=choice, response_format=JSON)
    alone, _ = await post("chat/completions", tools=[F], tool_choice=choice)
    assert worker.requests[-1].grammar == alone.requests[-1].grammar
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    format_ = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    choice = choice if isinstance(choice, str) else {"type": "function", "name": "f"}
    await post("responses", tools=[tool], tool_choice=choice, text={"format": format_})


@pytest.mark.parametrize("fields", [{"top_p": 0}, {"min_p": 1}, {"top_p": 5e-324}, {"min_p": 1 - 1e-12}])
async def test_where_one_token_is_left_it_is_greedy(fields: dict[str, Any]) -> None:
    for path in ("chat/completions", "responses"):
        worker, _ = await post(path, temperature=1.5, **fields)
        sampling = worker.requests[-1].sampling
        assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0, 1, 0)


async def test_a_null_is_absent_whatever_its_name() -> None:
    await post("chat/completions", thinking=None, documents=None, messages=[QUESTION | {"weight": None}])
    await post("responses", thinking=None)


async def test_only_allowed_functions_are_offered() -> None:
    allowed = {"mode": "auto", "tools": [NAMED]}
    worker, _ = await post(
        "chat/completions", tools=[F, G], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    alone, _ = await post("chat/completions", tools=[F])
    assert prompt_of(worker) == prompt_of(alone)


@pytest.mark.parametrize(
    ("message", "same"),
    [
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"content": None, "tool_calls": []}, {"content": ""}),
        ({"content": None}, {"content": ""}),
    ],
)
async def test_an_empty_turn_and_a_refusal_are_handed_back(message: dict[str, Any], same: dict[str, Any]) -> None:
    prompts = []
    for one in (message, same):
        worker, _ = await post("chat/completions", messages=[QUESTION, {"role": "assistant"} | one, QUESTION])
        prompts.append(prompt_of(worker))
    assert prompts[0] == prompts[1]


async def test_arguments_may_be_an_object() -> None:
    prompts = []
    for arguments in ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": "x"}
        worker, _ = await post("chat/completions", messages=[QUESTION, said, result], tools=[F])
        prompts.append(prompt_of(worker))
    assert prompts[0] == prompts[1]


async def test_what_other_servers_clients_always_send() -> None:
    worker, _ = await post(
        "chat/completions",
        keep_alive="5m",
        num_ctx=4096,
        think=True,
        cache_prompt=True,
        id_slot=-1,
        session_id="s",
        skip_special_tokens=True,
        mirostat=0,
        repeat_penalty=1.25,
        service_tier="flex",
        prompt_cache_retention="24h",
        stop=[str(i) for i in range(16)],
        tools=[{"type": "function", "function": {"name": f"mcp:{'a' * 100}/b.c"}}],
    )
    assert worker.requests[-1].sampling.repetition_penalty == 1.25


async def test_a_prompts_length_is_told_before_it_is_sent() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    form = {"type": "json_schema", "name": "x", "description": "An answer.", "schema": {"type": "object"}}
    for fields in ({}, {"instructions": "Be brief.", "tools": [tool]}, {"text": {"format": form}}):
        _, counted = await post("responses/input_tokens", **fields)
        worker, answer = await post("responses", **fields)
        expected = answer["usage"]["input_tokens"]
        assert counted == {"object": "response.input_tokens", "input_tokens": expected}
        assert expected == len(worker.requests[-1].prompt_token_ids)


async def test_a_length_is_refused_by_the_fields_of_its_own_request() -> None:
    model = tiny_model("{{ raise_exception('no') }}")
    async with http_client(http_app(FakeWorker(lambda _: []).generate, model=model)) as client:
        response = await client.post("/v1/responses/input_tokens", json={"model": "tiny", "input": "hi"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")


async def test_a_tool_of_the_other_api_is_told_by_its_place() -> None:
    worker = FakeWorker(lambda _: [])
    async with http_client(http_app(worker.generate, model=MODEL)) as client:
        response = await client.post("/v1/responses", json={"model": "tiny", "input": "hi", "tools": [F]})
    assert response.json()["error"]["param"] == "tools[0].name"
