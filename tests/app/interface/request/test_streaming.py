import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.chat import CHAT_CHUNKS
from app.interface.generate.answers.chunks import ChunkWriter, error_event
from app.interface.generate.answers.completions import COMPLETION_CHUNKS
from app.interface.request import errors
from app.interface.request.streaming import ClientGoneError, EventStream, until_disconnect
from app.interface.wire.generation import Usage


class Source:
    def __init__(self) -> None:
        self.closed = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            self.closed = True


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def read(source: AsyncGenerator[int, None]) -> AsyncGenerator[bytes, None]:
    async for _ in source:
        yield b"data: x\n\n"


async def test_the_end_of_a_stream_is_told_even_if_closing_it_fails() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: x\n\n"
            await asyncio.Event().wait()
        finally:
            raise asyncio.CancelledError  # as if the request were cancelled meanwhile

    ended = []
    events = failing()
    await anext(events)
    stream = EventStream(events, Source().items(), lambda: ended.append(1))

    async def send(_: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await stream({"type": "http"}, gone, send)
    assert ended == [1]


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_client_that_is_gone_closes_the_source_even_before_the_first_event(hangs: bool) -> None:
    source = Source()
    items = source.items()
    await anext(items)
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)
        if hangs:
            await asyncio.Event().wait()

    await asyncio.wait_for(EventStream(read(items), items)({"type": "http"}, gone, send), 60)
    assert source.closed


async def test_a_socket_that_fails_closes_the_source() -> None:
    source = Source()
    items = source.items()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("reset by peer")

    await EventStream(read(items), items)({"type": "http"}, never, send)
    assert source.closed


async def test_work_is_cancelled_when_the_client_goes_or_the_caller_is_cancelled() -> None:
    cancelled = 0

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def gone_later() -> dict[str, Any]:
        for _ in range(3):
            await asyncio.sleep(0)
        return await gone()

    with pytest.raises(ClientGoneError):
        await until_disconnect(gone_later, work())
    assert cancelled == 1
    waiting = asyncio.create_task(until_disconnect(never, work()))
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cancelled == 2


async def test_a_connection_that_fails_while_it_is_watched_counts_as_gone() -> None:
    async def broken() -> dict[str, Any]:
        raise RuntimeError("the proxy is gone")

    with pytest.raises(ClientGoneError):
        await until_disconnect(broken, asyncio.Event().wait())


USAGE = Usage.of(prompt_tokens=2, completion_tokens=3, cached_tokens=1)


@pytest.mark.parametrize("text", ["", "x", '"\\\n', "日本 🎉", "\x00\u2028\x85\u2029\x1c\x0b</script>", "%b %d {}"])
@pytest.mark.parametrize("reason", [None, "stop", "length"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_are_the_json_they_should_be(kind: Any, text: str, reason: str | None, include_usage: bool) -> None:
    shape = CHAT_CHUNKS if kind == "chat" else COMPLETION_CHUNKS
    writer = ChunkWriter(shape, AnswerHead('id"%d', 5, "m{}%b"), include_usage=include_usage)
    raw = writer.start(3) + writer.delta(3, text, reason) + writer.usage(USAGE)
    *events, rest = raw.split(b"\n\n")
    assert rest == b""
    # Clients that split the decoded stream where Unicode ends a line see the same events.
    assert raw.decode().splitlines()[::2] == [event.decode() for event in events]
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in events]
    shown = ""
    for chunk in chunks[:-1]:
        assert (chunk["id"], chunk["created"], chunk["model"]) == ('id"%d', 5, "m{}%b")
        assert ("usage" in chunk) == include_usage
        (choice,) = chunk["choices"]
        assert choice["index"] == 3
        shown += choice["delta"].get("content", "") if kind == "chat" else choice["text"]
    assert shown == text
    assert chunks[-1]["usage"] == USAGE.model_dump()
    if reason is not None:
        assert chunks[-2]["choices"][0]["finish_reason"] == reason


def test_an_error_that_quotes_a_line_end_is_one_event_to_every_client() -> None:
    event = error_event(errors.invalid("no \u2028 here")).decode()
    assert len(event.splitlines()) == 2
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "no \u2028 here"
