"""Conversations that are longer than the context, and answers that reach its end, by HTTP."""

import json
from typing import Any

import pytest

from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client
from tests.app.tiny_model import CONTEXT_TOKENS, tiny_model

MODEL = tiny_model()
LIMIT_TOKENS = CONTEXT_TOKENS * 3 // 4
CATS = "cat " * 10
TURNS = [{"role": role, "content": f"{role} {i} {CATS}"} for i in range(9) for role in ("user", "assistant")]
QUESTION = {"role": "user", "content": "the last"}
LONG = [{"role": "system", "content": "Be brief."}, *TURNS, QUESTION]
PATHS = ("chat/completions", "responses")


def body_of(path: str, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input" if path == "responses" else "messages": messages, **fields}


def saying(tokens: int = 3, finish_reason: Any = "stop") -> FakeWorker:
    return FakeWorker(lambda request: deltas([5] * tokens, finish_reason=finish_reason))


def full(request: GenerateRequest) -> list[Any]:
    return deltas([5] * request.max_new_tokens, each=7, finish_reason="length")


async def post(worker: FakeWorker, path: str, body: dict[str, Any]) -> Any:
    async with http_client(http_app(worker.generate, model=MODEL)) as client:
        return await client.post(f"/v1/{path}", json=body)


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{"truncation": "auto"}, {"on_overflow": "shift"}])
async def test_a_long_chat_is_answered_without_its_oldest_turns(path: str, fields: dict[str, str]) -> None:
    refused = await post(saying(), path, body_of(path, LONG))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == ("input" if path == "responses" else "messages")
    assert f"is {CONTEXT_TOKENS} tokens" in error["message"]

    worker = saying()
    answer = await post(worker, path, body_of(path, LONG, **fields))
    assert answer.status_code == 200, answer.text
    context = answer.json()["context"]
    assert context == {"left_out_turns": context["left_out_turns"], "limit_tokens": LIMIT_TOKENS}
    prompt = MODEL.tokenizer.text(worker.requests[0].prompt_token_ids)
    assert "Be brief." in prompt
    assert f"user {context['left_out_turns']} " in prompt
    assert f"user {context['left_out_turns'] - 1} " not in prompt
    assert (worker.requests[0].window is not None) == ("on_overflow" in fields)


@pytest.mark.parametrize("path", PATHS)
async def test_who_does_not_ask_is_told_nothing(path: str) -> None:
    assert "context" not in (await post(saying(), path, body_of(path, [QUESTION]))).json()
    asks = body_of(path, [QUESTION], on_overflow="shift")
    assert (await post(saying(), path, asks)).json()["context"] == {"left_out_turns": 0, "limit_tokens": LIMIT_TOKENS}


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_the_last_chunk_has_it(options: dict[str, bool] | None) -> None:
    body = body_of("chat/completions", LONG, on_overflow="shift", stream=True, stream_options=options)
    chunks = events_of((await post(saying(), "chat/completions", body)).text)
    assert [chunk for chunk in chunks if "context" in chunk] == chunks[-1:]
    assert chunks[-1]["context"]["left_out_turns"] > 0
    assert bool(chunks[-1]["choices"]) == (options is None)


async def test_the_events_of_a_response_have_it() -> None:
    body = body_of("responses", LONG, truncation="auto", stream=True)
    events = events_of((await post(saying(), "responses", body)).text)
    told = {event["type"]: event["response"]["context"] for event in events if "response" in event}
    assert list(told) == ["response.created", "response.in_progress", "response.completed"]
    assert all(context == told["response.created"] for context in told.values())
    assert told["response.created"]["left_out_turns"] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_the_context_has_ended_says_so(path: str, stream: bool) -> None:
    limit = "max_output_tokens" if path == "responses" else "max_tokens"

    async def context(tokens: int) -> Any:
        body = body_of(path, [QUESTION], truncation="auto", stream=stream, **{limit: tokens})
        answer = await post(FakeWorker(full), path, body)
        whole = events_of(answer.text)[-1] if stream else answer.json()
        whole = whole.get("response", whole)
        if path == "responses":
            assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        else:
            assert whole["choices"][0]["finish_reason"] == "length"
        return whole["context"]

    assert await context(10) == {"left_out_turns": 0, "limit_tokens": LIMIT_TOKENS}
    assert await context(32_000) == {"left_out_turns": 0, "limit_tokens": LIMIT_TOKENS, "full": True}


@pytest.mark.parametrize("path", PATHS)
async def test_minus_one_is_no_limit(path: str) -> None:
    field = "max_output_tokens" if path == "responses" else "max_completion_tokens"
    worker = saying()
    assert (await post(worker, path, body_of(path, [QUESTION], **{field: -1}))).status_code == 200
    assert worker.requests[0].max_new_tokens == 64, "the service's"
