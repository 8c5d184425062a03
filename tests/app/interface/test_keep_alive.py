"""Streams with long silences: before their first token, and between tokens."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from app.client.answers import completed
from app.client.turns import Asking, Ended, Knobs, Message
from app.client.v1 import connect
from app.interface.generate.answers.messages import PING
from app.interface.generate.attached import AttachedFiles
from app.interface.request import errors
from app.interface.request.streaming import KEEP_ALIVE, EventStream
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.exchange import Exchange
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.generate.test_replaced_model import RollingService
from tests.app.service import http_app, http_client, loopback_server, openai_client
from tests.app.tiny_model import reference_tokenizer

TEXT = "Hello, 日本 and more"
TOKENS = reference_tokenizer().encode(TEXT).ids
SOON_S = 0.01
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "hi"}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION), ("/v1/responses", RESPONSE)]
STREAM = {"stream": True}


class HeldWorker(FakeWorker):
    """Is silent until the test continues it: before the first item, and after the first `free` ones."""

    def __init__(self, script: Sequence[TokenDelta | Exception] | None = None, *, free: int = 0) -> None:
        super().__init__(lambda _: deltas(TOKENS) if script is None else script)
        self.may_go = asyncio.Event()
        self.left = asyncio.Event()
        self._free = free

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        try:
            if not self._free:
                await self.may_go.wait()
            stream, given = super().generate(request), 0
            try:
                async for delta in stream:
                    yield delta
                    given += 1
                    if given == self._free:
                        await self.may_go.wait()
            finally:
                await stream.aclose()
        finally:
            self.left.set()


def comments(count: int) -> Callable[[Exchange], bool]:
    return lambda exchange: exchange.body.count(KEEP_ALIVE) >= count


def events(body: bytes) -> list[Any]:
    """The data of the events, without `[DONE]`."""
    blocks = [block for block in body.split(b"\n\n") if block and block + b"\n\n" != KEEP_ALIVE]
    lines = [line[6:] for block in blocks for line in block.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def text_of(shown: Sequence[Any]) -> str:
    pieces = [event["delta"] for event in shown if event.get("type") == "response.output_text.delta"]
    choices = [choice for event in shown for choice in event.get("choices", ())]
    pieces += [choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices]
    return "".join(pieces)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_stream_answers_before_its_first_token(path: str, body: dict[str, Any]) -> None:
    worker = HeldWorker()
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=SOON_S), path, body | STREAM)
    await exchange.until(comments(3))
    assert exchange.status == 200
    assert exchange.headers["content-type"].startswith("text/event-stream")
    assert exchange.body.replace(KEEP_ALIVE, b"") == b"", "nothing but comments"
    worker.may_go.set()
    assert text_of(events((await exchange.ended()).body)) == TEXT
    assert exchange.body.endswith(b"data: [DONE]\n\n") == (path != "/v1/responses")
    if path == "/v1/responses":
        shown = events(exchange.body)
        assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
        assert (shown[0]["type"], shown[-1]["type"]) == ("response.created", "response.completed")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_what_fails_after_that_is_an_event(path: str, body: dict[str, Any]) -> None:
    worker = HeldWorker([EngineStoppedError("No worker is up.")])
    app = http_app(worker.generate, keep_alive_comment_s=SOON_S)
    exchange = Exchange(app, path, body | STREAM)
    await exchange.until(comments(1))
    worker.may_go.set()
    last = events((await exchange.ended()).body)[-1]
    if path == "/v1/responses":
        kinds = [event["type"] for event in events(exchange.body)]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.failed")
        last = last["response"]
    assert last["error"]["message"] == "No worker is up."
    assert b"[DONE]" not in exchange.body
    (failed,) = app.state.failures.newest_first()
    assert (failed.status, failed.code, failed.is_stream) == (503, "service_unavailable", True)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_what_fails_before_that_has_its_status(path: str, body: dict[str, Any]) -> None:
    app = http_app(FakeWorker(lambda _: [QueueFullError("full")]).generate, keep_alive_comment_s=10.0)
    assert (await Exchange(app, path, body | STREAM).ended()).status == 429
    refused = await Exchange(app, path, body | STREAM | {"nonsense": 1}).ended()
    assert refused.status == 400


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_an_answer_that_is_no_stream_keeps_its_status(path: str, body: dict[str, Any]) -> None:
    worker = HeldWorker([QueueFullError("full")])
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=SOON_S), path, body)
    await asyncio.sleep(5 * SOON_S)
    assert exchange.status == 0
    worker.may_go.set()
    assert (await exchange.ended()).status == 429
    assert exchange.body.startswith(b"{")


MESSAGE: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "messages": CHAT["messages"]}
READING = [*ROUTES, ("/v1/messages", MESSAGE)]


class Files:
    """The files of requests, which are read when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> None:
        self.may_go, self.left = asyncio.Event(), asyncio.Event()

        async def read_all(*_: Any) -> int:
            try:
                await self.may_go.wait()
                if failure is not None:
                    raise failure
                return 0
            finally:
                self.left.set()

        monkeypatch.setattr(AttachedFiles, "read_all", read_all)


def kept_alive(exchange: Exchange) -> bool:
    return exchange.body.count(KEEP_ALIVE) + exchange.body.count(PING) > 2


@pytest.mark.parametrize(("path", "body"), READING)
async def test_a_stream_is_open_while_files_are_read(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(monkeypatch)
    worker = FakeWorker(lambda _: deltas(TOKENS))
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=SOON_S), path, body | STREAM)
    await exchange.until(kept_alive)
    assert (exchange.status, worker.requests) == (200, [])
    files.may_go.set()
    shown = events((await exchange.ended()).body.replace(PING, b""))
    if path == "/v1/messages":
        assert [shown[0]["type"], shown[-1]["type"]] == ["message_start", "message_stop"]
    else:
        assert text_of(shown) == TEXT


@pytest.mark.parametrize(("path", "body"), READING)
async def test_a_file_that_can_not_be_read_then_ends_the_stream(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(monkeypatch, errors.invalid("It is damaged.", "input[0]", "invalid_file"))
    app = http_app(FakeWorker(lambda _: deltas(TOKENS)).generate, keep_alive_comment_s=SOON_S)
    exchange = Exchange(app, path, body | STREAM)
    await exchange.until(kept_alive)
    files.may_go.set()
    shown = events((await exchange.ended()).body.replace(PING, b""))
    last = shown[-1]
    if path == "/v1/responses":
        assert [event["type"] for event in shown] == ["response.created", "response.in_progress", "response.failed"]
        assert [event["sequence_number"] for event in shown] == [0, 1, 2]
        last = last["response"]
    assert last["error"]["message"] == "It is damaged."
    (failed,) = app.state.failures.newest_first()
    assert (failed.status, failed.is_stream) == (400, True)
    # soon, or where no stream is asked for, it has its status
    for more, keep_alive_s in ((STREAM, 10.0), ({}, SOON_S)):
        app = http_app(FakeWorker(lambda _: deltas(TOKENS)).generate, keep_alive_comment_s=keep_alive_s)
        assert (await Exchange(app, path, body | more).ended()).status == 400


@pytest.mark.parametrize(("path", "body"), READING)
@pytest.mark.parametrize("more", [STREAM, {}])
async def test_a_client_that_leaves_meanwhile_has_no_file_read(
    path: str, body: dict[str, Any], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(monkeypatch)
    worker = FakeWorker(lambda _: deltas(TOKENS))
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=SOON_S), path, body | more)
    if more:
        await exchange.until(kept_alive)
    exchange.leave()
    await exchange.ended()
    assert (files.left.is_set(), worker.requests) == (bool(more) or files.left.is_set(), [])


async def test_without_comments_a_stream_waits_for_its_first_token() -> None:
    worker = HeldWorker([QueueFullError("full")])
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=0.0), ROUTES[0][0], CHAT | STREAM)
    await asyncio.sleep(5 * SOON_S)
    assert (exchange.status, exchange.body) == (0, b"")
    worker.may_go.set()
    assert (await exchange.ended()).status == 429


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_comments_fill_a_pause_between_tokens(path: str, body: dict[str, Any]) -> None:
    worker = HeldWorker(free=2)
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=SOON_S), path, body | STREAM)
    await exchange.until(lambda it: bool(text_of(events(it.body))) and it.body.endswith(2 * KEEP_ALIVE))
    worker.may_go.set()
    assert text_of(events((await exchange.ended()).body)) == TEXT


@pytest.mark.parametrize("free", [0, 2], ids=["before the first token", "after it"])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_client_that_leaves_meanwhile_ends_the_work(path: str, body: dict[str, Any], free: int) -> None:
    worker = HeldWorker(free=free)
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=SOON_S), path, body | STREAM)
    await exchange.until(comments(2))
    assert not worker.left.is_set()
    exchange.leave()
    await exchange.ended()
    assert worker.left.is_set()
    assert worker.running == 0


async def test_a_model_that_is_replaced_meanwhile_is_asked_again() -> None:
    may_go = asyncio.Event()

    class Held(RollingService):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
            await may_go.wait()
            async for delta in super().generate(request):
                yield delta

    service = Held(runs=1, keep_alive_comment_s=SOON_S)
    exchange = Exchange(service.app(), "/v1/chat/completions", CHAT | STREAM)
    await exchange.until(comments(1))
    may_go.set()
    assert b"new: hi" in (await exchange.ended()).body
    assert b"error" not in exchange.body


class SlowWorker(FakeWorker):
    """Is slow for each token."""

    def __init__(self) -> None:
        super().__init__(lambda _: deltas(TOKENS))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        async for delta in super().generate(request):
            await asyncio.sleep(3 * SOON_S)
            yield delta


async def test_openais_client_reads_past_comments() -> None:
    app = http_app(SlowWorker().generate, keep_alive_comment_s=SOON_S)
    async with http_client(app) as plain:
        assert (await plain.post("/v1/chat/completions", json=CHAT | STREAM)).text.count(": keep-alive") > 3
    client = openai_client(app)
    chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    pieces = [piece async for piece in await client.completions.create(**COMPLETION, stream=True)]
    assert "".join(piece.choices[0].text for piece in pieces) == TEXT
    async with client.responses.stream(**RESPONSE) as stream:
        assert (await stream.get_final_response()).output_text == TEXT


def test_the_terminal_chat_reads_past_comments() -> None:
    app = http_app(SlowWorker().generate, keep_alive_comment_s=SOON_S)
    with loopback_server(app) as address, connect(address, None) as client:
        pieces = [*completed(Asking(client, "tiny", Knobs()), [Message("user", "hi")])]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == TEXT
    assert isinstance(pieces[-1], Ended)


async def test_openais_client_raises_what_fails_after_comments() -> None:
    worker = HeldWorker([EngineStoppedError("worker lost")])
    client = openai_client(http_app(worker.generate, keep_alive_comment_s=SOON_S))
    asyncio.get_running_loop().call_later(5 * SOON_S, worker.may_go.set)

    async def read() -> None:
        async for _ in await client.chat.completions.create(**CHAT, stream=True):
            pass

    with pytest.raises(Exception, match="worker lost"):
        await read()


async def test_a_client_that_takes_nothing_gets_one_comment_and_none_comes_after_the_end() -> None:
    sent: list[Any] = []
    takes = asyncio.Event()
    may_end = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"data: x\n\n"
        await may_end.wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body") == KEEP_ALIVE:
            await takes.wait()

    async def never() -> Any:
        await asyncio.Event().wait()

    streaming = asyncio.create_task(EventStream(pieces(), keep_alive_s=SOON_S)({"type": "http"}, never, send))
    async with asyncio.timeout(60):
        while len(sent) < 3:
            await asyncio.sleep(SOON_S)
    await asyncio.sleep(10 * SOON_S)
    assert [message.get("body") for message in sent] == [None, b"data: x\n\n", KEEP_ALIVE]
    may_end.set()
    takes.set()
    await asyncio.wait_for(streaming, 60)
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
