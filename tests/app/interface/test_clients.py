"""What clients send beside what OpenAI's own does: each was met in one, and refused."""

import json
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
PATCH: Any = {"type": "custom", "custom": {"name": "patch", "description": "Changes files."}}
PATCHED = {"name": "patch", "input": 'a "b"\n'}
PATCHES = '<tool_call>\n{"name": "patch", "arguments": {"input": "a \\"b\\"\\n"}}\n</tool_call>'


async def post(path: str, written: str = "{}", max_choices: int = 4, **fields: Any) -> tuple[FakeWorker, Any]:
    """The worker that was asked and answered with the text, and the answer; a stream as its events."""
    worker = FakeWorker(lambda _: deltas(reference_tokenizer().encode(written).ids))
    least: dict[str, Any] = {"chat/completions": {"messages": [QUESTION]}, "completions": {"prompt": "hi"}}
    given = least.get(path, {"input": "hi"})
    async with http_client(http_app(worker.generate, model=MODEL, max_choices=max_choices)) as client:
        response = await client.post(f"/v1/{path}", json={"model": "tiny"} | given | fields)
    assert response.status_code == 200, response.text
    if fields.get("stream"):
        return worker, [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return worker, response.json()


def prompt_of(worker: FakeWorker) -> str:
    return MODEL.tokenizer.text(worker.requests[-1].prompt_token_ids)


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
    harmless: dict[str, Any] = {
        "keep_alive": "5m",
        "num_ctx": 4096,
        "think": True,
        "cache_prompt": True,
        "id_slot": -1,
        "session_id": "s",
        "skip_special_tokens": True,
        "mirostat": 0,
        "service_tier": "flex",
        "prompt_cache_retention": "24h",
    }
    worker, _ = await post(
        "chat/completions",
        repeat_penalty=1.25,
        stop=[str(i) for i in range(16)],
        tools=[{"type": "function", "function": {"name": f"mcp:{'a' * 100}/b.c"}}],
        **harmless,
    )
    assert worker.requests[-1].sampling.repetition_penalty == 1.25
    worker, _ = await post("responses", do_sample=False, use_cache=False, **harmless)
    assert (worker.requests[-1].sampling.temperature, worker.requests[-1].uses_cache) == (0, False)


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


async def test_the_usage_so_far_is_in_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path in ("chat/completions", "completions"):
        ids = reference_tokenizer().encode("Yes, it is.").ids
        worker, chunks = await post(path, "Yes, it is.", stream=True, stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == len(ids)
        assert all(chunk["usage"]["completion_tokens"] for chunk in chunks[1:])
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {len(worker.requests[0].prompt_token_ids)}
        assert chunks[-1]["choices"] == []
        _, without = await post(path, "Yes", stream=True, stream_options=options | {"include_usage": False})
        assert all("usage" not in chunk for chunk in without)


@pytest.mark.parametrize("text", ["<think>hm</think>Yes, it is.", PATCHES])
async def test_tokens_are_told(text: str) -> None:
    ids = reference_tokenizer().encode(text).ids
    fields: dict[str, Any] = {"tools": [F, PATCH], "return_token_ids": True, "n": 2}
    worker, answer = await post("chat/completions", text, **fields)
    prompt = list(worker.requests[0].prompt_token_ids)
    assert answer["prompt_token_ids"] == prompt
    assert [choice["token_ids"] for choice in answer["choices"]] == [ids, ids]
    _, chunks = await post("chat/completions", text, stream=True, **fields)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt, *[None] * (len(chunks) - 1)]
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 1]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == ids


async def test_the_tokens_of_completions_are_told_with_their_prompts() -> None:
    prompts = [reference_tokenizer().encode(text).ids for text in ("The", "world")]
    ids = reference_tokenizer().encode("Yes").ids
    fields: dict[str, Any] = {"prompt": prompts, "return_token_ids": True, "n": 2}
    _, answer = await post("completions", "Yes", best_of=3, max_choices=8, **fields)
    told = [(choice["prompt_token_ids"], choice["token_ids"]) for choice in answer["choices"]]
    assert told == [(prompt, ids) for prompt in prompts for _ in range(2)]
    _, chunks = await post("completions", "Yes", stream=True, **fields)
    for index in range(4):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice] == [
            prompts[index // 2]
        ]
        assert [token for choice in choices for token in choice.get("token_ids", [])] == ids


def with_grammar(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": PATCH["custom"] | {"format": form}}


@pytest.mark.parametrize("text", [PATCHES, PATCHES.replace('"input"', '"patch"')])
async def test_a_custom_tool_in_chat_gets_its_text(text: str) -> None:
    _, answer = await post("chat/completions", text, tools=[F, PATCH])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call == {"id": call["id"], "type": "custom", "custom": PATCHED}
    _, chunks = await post("chat/completions", text, tools=[F, PATCH], stream=True)
    begun, *more = [call for one in chunks for call in one["choices"][0]["delta"].get("tool_calls", [])]
    assert begun == {"index": 0, "id": begun["id"], "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert all(call.keys() == {"index", "custom"} for call in more)
    assert "".join(call["custom"]["input"] for call in more) == PATCHED["input"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Done."}
    said = answer["choices"][0]["message"]
    handed_back, _ = await post("chat/completions", tools=[F, PATCH], messages=[QUESTION, said, result])
    function = {"name": "patch", "arguments": {"input": PATCHED["input"]}}
    said = {"role": "assistant", "tool_calls": [{"id": call["id"], "type": "function", "function": function}]}
    as_function, _ = await post("chat/completions", tools=[F, PATCH], messages=[QUESTION, said, result])
    assert prompt_of(handed_back) == prompt_of(as_function)


async def test_custom_tools_are_offered_as_in_responses() -> None:
    for syntax, definition in (("lark", 'start: "a"'), ("regex", "a|b"), (None, "")):
        tool = with_grammar(syntax, definition) if syntax else PATCH
        form = {"type": "grammar", "syntax": syntax, "definition": definition} if syntax else {"type": "text"}
        other = {"type": "custom", "name": "patch", "description": "Changes files.", "format": form}
        worker, _ = await post("chat/completions", tools=[tool])
        same, _ = await post("responses", tools=[other])
        assert prompt_of(worker) == prompt_of(same)
        assert worker.requests[-1].grammar == same.requests[-1].grammar


async def test_a_custom_tool_is_chosen() -> None:
    chosen = {"type": "custom", "custom": {"name": "patch"}}
    _, answer = await post("chat/completions", '{"input": "a"}', tools=[F, PATCH], tool_choice=chosen)
    assert answer["choices"][0]["message"]["tool_calls"][0]["custom"] == {"name": "patch", "input": "a"}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [chosen]}}
    worker, _ = await post("chat/completions", tools=[F, PATCH], tool_choice=allowed)
    alone, _ = await post("chat/completions", tools=[PATCH])
    assert prompt_of(worker) == prompt_of(alone)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "custom", "custom": {"name": "a b"}}, "tools[0].custom.name"),
        ({"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}}, "tools[0].custom.format"),
        ({"type": "other"}, "tools[0].type"),
        (with_grammar("regex", "a" * 65530), "tools[0].custom.format.grammar.definition"),
    ],
)
async def test_a_custom_tool_is_refused_by_its_place(tool: dict[str, Any], param: str) -> None:
    async with http_client(http_app(FakeWorker(lambda _: []).generate, model=MODEL)) as client:
        body = {"model": "tiny", "messages": [QUESTION], "tools": [tool]}
        response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_model_has_other_names_and_the_first_is_asked_by_none() -> None:
    worker = FakeWorker(lambda _: deltas(reference_tokenizer().encode("Yes").ids))
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": [QUESTION]},
        "completions": {"prompt": "hi"},
        "responses": {"input": "hi"},
    }
    async with http_client(http_app(worker.generate, model=MODEL, aliases=("gpt-4o", "a/b"))) as client:
        for path, body in bodies.items():
            for asked, told in (("gpt-4o", "gpt-4o"), ("a/b", "a/b"), ("tiny", "tiny"), (None, "tiny"), ("", "tiny")):
                response = await client.post(f"/v1/{path}", json=body | {"model": asked})
                assert (response.status_code, response.json()["model"]) == (200, told)
            assert (await client.post(f"/v1/{path}", json=body)).json()["model"] == "tiny"
            assert (await client.post(f"/v1/{path}", json=body | {"model": "gpt"})).status_code == 404
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(one["id"], one["aliases"]) for one in listed] == [("tiny", ["gpt-4o", "a/b"])]
        assert (await client.get("/v1/models/a/b")).json() == listed[0] | {"id": "a/b"}
        metrics = (await client.get("/metrics")).text
    assert 'model="tiny"' in metrics
    assert "gpt-4o" not in metrics
