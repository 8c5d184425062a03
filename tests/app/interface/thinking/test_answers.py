"""Answers of a model that thinks: in chats and responses, whole and streamed."""

import json
from typing import Any

import numpy as np
import pytest
from openai.types.responses import ResponseReasoningItem

from app.interface.generate.planning.responses import chat_request
from app.interface.wire.responses import ResponseRequest
from app.messages.outputs import TokenDelta, TokenScores
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.thinking.families import BODY, CHAT, OPENING, SWITCHED, Asked, encoded, thinking_model
from tests.app.service import http_app, http_client, openai_client
from tests.app.tiny_model import TEMPLATE

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOL: dict[str, Any] = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
THOUGHT = "Hm, 日本.\n\nSTOP? No."
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


class Thinker(Asked):
    """A service with a model that answers with this text."""

    def __init__(
        self, text: str, template: str = SWITCHED, *, tokens: bool | None = None, each: int = 1, reason: Any = "stop"
    ) -> None:
        self.ids = encoded(text, has_tokens=tokens is not None)
        self.worker = FakeWorker(lambda _: deltas(self.ids, each=each, finish_reason=reason))
        self.app = http_app(self.worker.generate, model=thinking_model(template, tokens=tokens))

    async def events(self, **fields: Any) -> list[Any]:
        response = await self.post("/v1/responses", BODY | {"stream": True} | fields)
        return [json.loads(part.split("data: ", 1)[1]) for part in response.text.split("\n\n") if "data: " in part]


def joined(chunks: list[Any], name: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(name) or "" for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("tokens", [None, False, True], ids=["text", "token", "special token"])
@pytest.mark.parametrize(
    ("template", "written"),
    [
        (SWITCHED, f"<think>\n{THOUGHT}\n</think>\n\nIt is."),
        (OPENING, f"{THOUGHT}\n</think>\n\nIt is."),
    ],
)
@pytest.mark.parametrize("each", [1, 7])
async def test_a_chats_thought_is_apart(template: str, written: str, tokens: bool | None, each: int) -> None:
    service = Thinker(written, template, tokens=tokens, each=each)
    answer = await service.chat()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, "It is.")
    reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    before_answer = written.index("</think>") + len("</think>")
    thought_ids = encoded(written[:before_answer], has_tokens=tokens is not None)
    assert reasoning == len(thought_ids)
    assert answer["usage"]["completion_tokens"] == len(service.ids)
    chunks = await service.chunks(stream_options={"include_usage": True})
    assert (joined(chunks, "reasoning_content"), joined(chunks, "content")) == (THOUGHT, "It is.")
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    kinds = [name for chunk in chunks[1:-2] for name in chunk["choices"][0]["delta"]]
    assert kinds == sorted(kinds, reverse=True), "all of the thought comes before the answer"


@pytest.mark.parametrize(
    ("template", "text"), [(SWITCHED, "It is, </think> or <think>."), (TEMPLATE, "x <think>y</think>")]
)
async def test_an_answer_without_a_thought_is_as_it_was(template: str, text: str) -> None:
    answer = await Thinker(text, template).chat()
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_a_model_that_was_tuned_to_think_without_its_template_saying_so() -> None:
    message = (await Thinker("<think>hm</think>Yes", TEMPLATE).chat())["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes")


async def test_a_thought_that_the_limit_cuts() -> None:
    service = Thinker("<think>\nHm, well", reason="length")
    (choice,) = (await service.chat())["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm, well", "")
    assert choice["finish_reason"] == "length"
    answer = (await service.post("/v1/responses", BODY)).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [(item["type"], item["status"]) for item in answer["output"]] == [("reasoning", "incomplete")]
    assert answer["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm, well"}]


@pytest.mark.parametrize("each", [1, 100])
async def test_stop_strings_end_answers_only(each: int) -> None:
    (choice,) = (await Thinker(f"<think>{THOUGHT}</think>It is. STOP here", each=each).chat(stop="STOP"))["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (THOUGHT, "It is. ")


@pytest.mark.parametrize("each", [1, 100])
async def test_a_call_in_a_thought_is_none(each: int) -> None:
    service = Thinker(f"<think>\nShould I {CALL}?\n</think>\n\n{CALL}", each=each)
    (choice,) = (await service.chat(tools=[{"type": "function", "function": TOOL}]))["choices"]
    assert choice["message"]["reasoning_content"] == f"Should I {CALL}?"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"a": 1}']
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    answer = (await service.post("/v1/responses", BODY | {"tools": [{"type": "function", **TOOL}]})).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call"]


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("each", [1, 3, 100])
async def test_log_probabilities_are_those_of_the_answer(each: int, functions: bool) -> None:
    ids = encoded("<think>hm</think>It is <b", has_tokens=False)
    nothing = np.zeros((1, 0), np.float32)

    def scored(some: list[int]) -> TokenDelta:
        tops = np.repeat(nothing, len(some), axis=0)
        scores = TokenScores(np.full(len(some), -1.0, np.float32), tops.astype(np.int32), tops)
        return TokenDelta(tuple(some), None, 0, scores)

    script = [*(scored(ids[at : at + each]) for at in range(0, len(ids), each)), TokenDelta((), "length")]
    app = http_app(FakeWorker(lambda _: script).generate, model=thinking_model())
    fields = {"tools": [{"type": "function", "function": TOOL}]} if functions else {}
    async with http_client(app) as client:
        answer = (await client.post("/v1/chat/completions", json=CHAT | {"logprobs": True} | fields)).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "It is <b"


# --- responses -----------------------------------------------------------------------------------------------------


async def test_a_response_has_an_item_of_the_thought() -> None:
    client = openai_client(Thinker(f"<think>\n{THOUGHT}\n</think>\n\nIt is.").app)
    answer = await client.responses.create(**BODY, reasoning={"effort": "high"})
    thought, message = answer.output
    assert isinstance(thought, ResponseReasoningItem)
    assert [part.text for part in thought.content or ()] == [THOUGHT]
    assert (thought.summary, thought.status, message.type) == ([], "completed", "message")
    assert answer.output_text == "It is."
    assert answer.reasoning is not None
    assert answer.reasoning.effort == "high"
    assert answer.usage is not None
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


async def test_a_responses_events() -> None:
    client = openai_client(Thinker(f"{THOUGHT}</think>It is.", OPENING).app)
    kinds: list[str] = []
    texts, last = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}, None
    async for event in await client.responses.create(**BODY, stream=True):
        kinds += [event.type] if kinds[-1:] != [event.type] else []
        if event.type in texts:
            texts[event.type] += event.delta
        last = event
    assert list(texts.values()) == [THOUGHT, "It is."]
    item = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    each = [kind.format(name) for name in ("reasoning_text", "output_text") for kind in item]
    assert kinds == [f"response.{kind}" for kind in ("created", "in_progress", *each, "completed")]
    assert last is not None
    assert last.type == "response.completed"
    assert [one.type for one in last.response.output] == ["reasoning", "message"]


async def test_events_and_their_response_agree() -> None:
    events = await Thinker("<think>hm</think>Yes").events()
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [(event["output_index"], event["item"]["content"]) for event in added] == [(0, []), (1, [])]
    done = next(event for event in events if event["type"] == "response.reasoning_text.done")
    assert (done["text"], done["item_id"], done["content_index"]) == ("hm", items[0]["id"], 0)


async def test_the_fields_reach_the_template() -> None:
    service = Thinker("Yes")
    off: dict[str, Any] = {"enable_thinking": False}
    for fields in ({"reasoning": {"effort": "none"}}, off, {"chat_template_kwargs": off}):
        await service.post("/v1/responses", BODY | fields)
        model = thinking_model()
        assert model.tokenizer.text(service.worker.requests[-1].prompt_token_ids).endswith("<think>\n\n</think>\n\n")


async def test_a_response_that_is_handed_back() -> None:
    tools = {"tools": [{"type": "function", **TOOL}]}
    first = (await Thinker(f"<think>hm</think>So: {CALL}").post("/v1/responses", BODY | tools)).json()
    said = [{"role": "user", "content": "Is it?"}, *first["output"]]
    said.append({"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "3"})
    user, assistant, result = chat_request(ResponseRequest.model_validate({"model": "m", "input": said})).messages
    assert (assistant.reasoning_content, assistant.content, len(assistant.tool_calls or ())) == ("hm", "So: ", 1)
    assert (user.role, result.role) == ("user", "tool")


def test_thoughts_belong_to_what_comes_next() -> None:
    def thought(**fields: Any) -> dict[str, Any]:
        return {"type": "reasoning", "id": "rs_1", "summary": [], **fields}

    said = [
        {"role": "user", "content": "a"},
        thought(content=[{"type": "reasoning_text", "text": "one"}], encrypted_content=None),
        {"role": "assistant", "content": "b"},
        thought(summary=[{"type": "summary_text", "text": "two"}]),
        {"role": "assistant", "content": "c"},
        thought(encrypted_content="gAAA"),
        {"role": "user", "content": "d"},
        thought(content=[{"type": "text", "text": "three"}]),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    made = chat_request(ResponseRequest.model_validate({"model": "m", "input": said})).messages
    assert [(message.role, message.content, message.reasoning_content) for message in made] == [
        ("user", "a", None),
        ("assistant", "b", "one"),
        ("assistant", "c", "two"),
        ("user", "d", None),
        ("assistant", None, "three"),
    ]


# --- schemas -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({}, "start: output | opening thought output"),
        ({"reasoning_effort": "none"}, None),
    ],
)
async def test_a_schema_holds_what_comes_after_the_thought(fields: dict[str, Any], begins: str | None) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    written = '<think>{"b"}</think>{"a": 1}' if begins else '{"a": 1}'
    service = Thinker(written)
    (choice,) = (await service.chat(response_format=form, **fields))["choices"]
    assert choice["message"]["content"] == '{"a": 1}'
    assert choice["message"].get("reasoning_content") == ('{"b"}' if begins else None)
    grammar = service.worker.requests[0].grammar or ""
    assert (begins in grammar) if begins else (json.loads(grammar) == SCHEMA)


async def test_a_forced_call_after_a_thought() -> None:
    service = Thinker('hm</think>\n\n{"a": 1}', OPENING)
    choice = {"type": "function", "function": {"name": "add"}}
    (made,) = (await service.chat(tools=[{"type": "function", "function": TOOL}], tool_choice=choice))["choices"]
    assert made["message"]["reasoning_content"] == "hm"
    assert [call["function"] for call in made["message"]["tool_calls"]] == [{"name": "add", "arguments": '{"a": 1}'}]
    assert "start: thought output" in (service.worker.requests[0].grammar or "")


async def test_a_model_that_does_not_think_has_no_room_for_thoughts_in_a_schema() -> None:
    service = Thinker('{"a": 1}', TEMPLATE)
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    await service.chat(response_format=form)
    assert json.loads(service.worker.requests[0].grammar or "") == SCHEMA
