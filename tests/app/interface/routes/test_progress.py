"""`return_progress`: events before a stream's first token, only on request."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx2
import pytest

from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import PromptProgress, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_metrics import series, value
from tests.app.service import http_app, http_client, openai_client
from tests.app.tiny_model import reference_tokenizer

TEXT = "Hello, 日本 and more"
TOKENS = reference_tokenizer().encode(TEXT).ids
NEWS = [
    PromptProgress(10, 0, 0, 0.0, queued_ahead=2),
    PromptProgress(10, 0, 0, 0.0, queued_ahead=0),
    PromptProgress(10, 4, 8, 0.5, queued_ahead=None),
    PromptProgress(10, 4, 10, 0.7501, queued_ahead=None),
]
WRITTEN = [
    {"total": 10, "cache": 0, "processed": 0, "time_ms": 0, "queued_ahead": 2},
    {"total": 10, "cache": 0, "processed": 0, "time_ms": 0, "queued_ahead": 0},
    {"total": 10, "cache": 4, "processed": 8, "time_ms": 500, "queued_ahead": None},
    {"total": 10, "cache": 4, "processed": 10, "time_ms": 750, "queued_ahead": None},
]
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "hi"}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION), ("/v1/responses", RESPONSE)]
ASKS = {"stream": True, "return_progress": True}

Items = Sequence[TokenDelta | Exception]


class Worker:
    """Reports progress on request, as a worker does, and then generates TEXT, or runs `then`."""

    def __init__(self, then: Items | None = None) -> None:
        first, *rest = deltas(TOKENS) if then is None else then
        self.requests: list[GenerateRequest] = []
        self._quiet: Items = [first, *rest]
        with_first = first._replace(progress=NEWS[-1]) if isinstance(first, TokenDelta) else first
        self._telling: Items = [*(TokenDelta((), progress=each) for each in NEWS[:-1]), with_first, *rest]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        self.requests.append(request)
        for item in self._telling if request.reports_progress else self._quiet:
            if isinstance(item, Exception):
                raise item
            yield item
            for _ in range(50):  # the reader takes it before the next one
                await asyncio.sleep(0)


async def post(worker: Worker, path: str, body: Any) -> httpx2.Response:
    async with http_client(http_app(worker.generate)) as client:
        return await client.post(path, json=body)


def events(response: httpx2.Response) -> list[Any]:
    """The data of the events, without `[DONE]`."""
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("usage", [{}, {"stream_options": {"include_usage": True}}], ids=["", "usage"])
@pytest.mark.parametrize(("path", "body"), ROUTES[:2])
async def test_chunks_of_news_come_before_the_text(path: str, body: dict[str, Any], usage: dict[str, Any]) -> None:
    chunks = events(await post(Worker(), path, body | ASKS | usage))
    quiet = events(await post(Worker(), path, body | {"stream": True} | usage))
    opening = 1 if path.endswith("chat/completions") else 0
    news = chunks[opening : opening + 4]
    assert [chunk["prompt_progress"] for chunk in news] == WRITTEN
    for chunk in news:
        [choice] = chunk["choices"]
        assert (choice["index"], choice["finish_reason"]) == (0, None)
        assert choice.get("delta", choice.get("text")) in ({}, "")
        assert ("usage" in chunk, chunk.get("usage")) == (bool(usage), None)
    others = chunks[:opening] + chunks[opening + 4 :]
    assert [each | {"id": "", "created": 0} for each in others] == [each | {"id": "", "created": 0} for each in quiet]


async def test_an_echo_comes_after_the_news() -> None:
    chunks = events(await post(Worker(), "/v1/completions", COMPLETION | ASKS | {"echo": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == f"hi{TEXT}"
    assert all("prompt_progress" in chunk for chunk in chunks[:4])


async def test_every_choice_has_its_news() -> None:
    chunks = events(await post(Worker(), "/v1/chat/completions", CHAT | ASKS | {"n": 3}))
    for index in range(3):
        ours = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [chunk["prompt_progress"] for chunk in ours if "prompt_progress" in chunk] == WRITTEN
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in ours)
        assert text == TEXT


async def test_a_response_is_queued_then_in_progress() -> None:
    shown = events(await post(Worker(), "/v1/responses", RESPONSE | ASKS))
    assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
    assert [event["type"] for event in shown[:8]] == [
        "response.created",
        "response.queued",
        "response.prompt_progress",
        "response.prompt_progress",
        "response.in_progress",
        "response.prompt_progress",
        "response.prompt_progress",
        "response.output_item.added",
    ]
    assert [event["prompt_progress"] for event in shown if "prompt_progress" in event] == WRITTEN
    assert [event["response"]["status"] for event in shown if "response" in event] == [
        *("queued", "queued", "in_progress", "completed")
    ]
    assert shown[-1]["response"]["output"][0]["content"][0]["text"] == TEXT


async def test_a_response_is_in_progress_even_if_no_news_came() -> None:
    async def silent(_: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        for delta in deltas(TOKENS):
            yield delta

    async with http_client(http_app(silent)) as client:
        shown = events(await client.post("/v1/responses", json=RESPONSE | ASKS))
    assert [event["response"]["status"] for event in shown if "response" in event] == [
        *("queued", "queued", "in_progress", "completed")
    ]


@pytest.mark.parametrize("wish", [{}, {"return_progress": False}, {"return_progress": None}], ids=str)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_who_does_not_ask_is_told_nothing(
    path: str, body: dict[str, Any], streamed: bool, wish: dict[str, Any]
) -> None:
    worker = Worker()
    response = await post(worker, path, body | wish | {"stream": streamed})
    assert response.status_code == 200
    assert "progress" not in response.text.replace("in_progress", "")
    assert "queued" not in response.text
    assert [request.reports_progress for request in worker.requests] == [False]


@pytest.mark.parametrize("streamed", [{}, {"stream": False}], ids=str)
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_it_is_refused_without_a_stream(path: str, body: dict[str, Any], streamed: dict[str, Any]) -> None:
    worker = Worker()
    response = await post(worker, path, body | {"return_progress": True} | streamed)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "return_progress")
    assert worker.requests == []


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_failure_before_any_news_has_its_status(path: str, body: dict[str, Any]) -> None:
    async with http_client(http_app(FakeWorker(lambda _: [QueueFullError("full")]).generate)) as client:
        assert (await client.post(path, json=body | ASKS)).status_code == 429


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_failure_after_news_is_an_event(path: str, body: dict[str, Any]) -> None:
    shown = events(await post(Worker([EngineStoppedError("worker lost")]), path, body | ASKS))
    last = shown[-1]
    if path == "/v1/responses":
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        last = last["response"]
    assert last["error"]["message"] == "worker lost"
    assert sum("prompt_progress" in event for event in shown) == 3


async def test_openais_client_reads_past_it() -> None:
    client = openai_client(http_app(Worker().generate))
    extra: Any = {"extra_body": {"return_progress": True}}
    chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True, **extra)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    told = [chunk.model_extra for chunk in chunks if chunk.model_extra]
    assert [each["prompt_progress"] for each in told] == WRITTEN
    pieces = [piece async for piece in await client.completions.create(**COMPLETION, stream=True, **extra)]
    assert "".join(piece.choices[0].text for piece in pieces) == TEXT
    async with client.responses.stream(**RESPONSE, **extra) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == TEXT
    assert kinds.count("response.prompt_progress") == 4  # type: ignore[arg-type]


async def test_news_alone_counts_as_no_prompt_and_no_token() -> None:
    body = {"model": "tiny", "prompt": [4] * 7} | ASKS
    gone = Worker([EngineStoppedError("gone")])
    async with http_client(http_app(gone.generate)) as client:
        await client.post("/v1/completions", json=body)
        counts = series((await client.get("/metrics")).text)
    assert value(counts, "redoubt_sequences_total", model="tiny", reason="error") == 1
    assert value(counts, "redoubt_prompt_tokens_total", model="tiny") == 0
    async with http_client(http_app(Worker().generate)) as client:
        await client.post("/v1/completions", json=body)
        counts = series((await client.get("/metrics")).text)
    assert value(counts, "redoubt_prompt_tokens_total", model="tiny") == 7
    assert value(counts, "redoubt_time_to_first_token_seconds_count", model="tiny") == 1
    assert value(counts, "redoubt_generated_tokens_total", model="tiny") == len(TOKENS)
