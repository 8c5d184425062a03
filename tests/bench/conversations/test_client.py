"""The client against small servers on loopback, whose streams are cut at unlucky places."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from bench.conversations.client import Client, Receipt

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


def events(*texts: str, chat: bool = True) -> bytes:
    choices = [{"delta": {"content": text}} if chat else {"text": text} for text in texts]
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [choice], "usage": None} for choice in choices]
    usage = {"prompt_tokens": 9, "completion_tokens": len(texts), "prompt_tokens_details": {"cached_tokens": 4}}
    chunks.append({"choices": [], "usage": usage})
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"


async def chunked(writer: asyncio.StreamWriter, body: bytes, size: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for begin in range(0, len(body), size):
        piece = body[begin : begin + size]
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def sent(answer: Answer, job: dict[str, Any]) -> tuple[list[Receipt], list[dict[str, Any]]]:
    bodies: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().partition("content-length:")[2].split()[0])
        bodies.append({"head": head, **json.loads(await reader.readexactly(size))})
        try:
            await answer(bodies[-1], writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix"
    defaults = {"url": url, "arrivals_s": None, "at_once": 1, "timeout_s": 60, "end_by_s": 120}
    async with server:
        receipts = await Client(defaults | job).run()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)  # so that connections whose client has left are closed
        return receipts, bodies


def requests(*numbers: int) -> Sequence[dict[str, Any]]:
    return [{"path": "/v1/chat/completions", "body": {"number": number}} for number in numbers]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_read_whatever_their_chunks_are(size: int) -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await chunked(writer, events("a", "b", "c"), size)

    receipts, bodies = asyncio.run(sent(answer, {"conversations": [requests(1)]}))
    (one,) = receipts
    assert (one.tokens, one.prompt_tokens, one.cached_tokens, one.error) == (3, 9, 4, "")
    assert len(one.event_times_s) == 3  # the role's event has no text
    assert one.due_s <= one.sent_s <= one.event_times_s[0] <= one.event_times_s[-1] <= one.end_s
    assert bodies[0]["head"].startswith("POST /prefix/v1/chat/completions HTTP/1.1\r\n")


def test_reasoning_is_text_and_an_odd_event_is_a_failure() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        odd = b"data: {odd\n\n" if body["number"] == 2 else b'data: {"choices": null}\n\n'
        thought = b'data: {"choices": [{"delta": {"content": null, "reasoning_content": "hm"}}]}\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + odd + thought + b"data: [DONE]\n\n")

    receipts, _ = asyncio.run(sent(answer, {"conversations": [requests(1), requests(2)]}))
    assert [len(one.event_times_s) for one in receipts] == [1, 1]
    assert [one.error for one in receipts] == ["", "an event that is no JSON"]


def test_a_body_may_end_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + events("a", "b", chat=False))

    monkeypatch.setenv("REDOUBT_API_KEY", "secret")
    (one,), bodies = asyncio.run(sent(answer, {"conversations": [requests(1)]}))
    assert (one.tokens, len(one.event_times_s), one.error) == (2, 2, "")
    assert "Authorization: Bearer secret\r\n" in bodies[0]["head"]


def test_a_turn_follows_the_answer_before_and_none_a_failure() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if body["number"] == 2:
            writer.write(b"HTTP/1.1 429 Too Many\r\n\r\n")
        else:
            await chunked(writer, events("a"), 50)

    receipts, bodies = asyncio.run(sent(answer, {"conversations": [requests(1, 2, 3), requests(4, 5)]}))
    assert [body["number"] for body in bodies] == [1, 2, 4, 5]
    assert [one.error for one in receipts] == ["", "status 429", "", ""]
    assert receipts[1].due_s == receipts[0].end_s


def test_failures_have_their_kind() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        if body["number"] == 1:
            writer.write(events("a", "b")[:-20])
        elif body["number"] == 2:
            writer.write(b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n')
        else:
            await writer.drain()
            await asyncio.Event().wait()

    receipts, _ = asyncio.run(sent(answer, {"conversations": [requests(1), requests(2)]}))
    assert [one.error for one in receipts] == ["ended in the middle", "error event"]
    job = {"conversations": [requests(3)], "timeout_s": 0.5}
    (silent,), _ = asyncio.run(sent(answer, job))
    assert silent.error == "timeout"
    gone, _ = asyncio.run(sent(answer, {"conversations": [requests(3)], "end_by_s": 0.05}))
    assert gone[0].error == "not done when the run was ended"
    nobody = asyncio.run(
        Client(
            {**job, "timeout_s": 60, "url": "http://127.0.0.1:9", "arrivals_s": None, "at_once": 1, "end_by_s": 120}
        ).run()
    )
    assert {one.error for one in nobody} == {"connection: ConnectionRefusedError"}


def test_arrivals_do_not_wait_for_answers() -> None:
    running = most = 0

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        while most < 3 and running < 3:  # until all have come
            await asyncio.sleep(0)
        await chunked(writer, events("a"), 50)

    job = {"conversations": [requests(1), requests(2), requests(3)], "arrivals_s": [0.0, 0.001, 0.002]}
    receipts, _ = asyncio.run(sent(answer, job))
    assert most == 3
    assert [one.due_s for one in receipts] == [0.0, 0.001, 0.002]


def test_no_conversation_begins_late_in_a_bounded_loop() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await chunked(writer, events("a"), 100)

    job = {"conversations": [requests(number) for number in range(50)], "begin_within_s": 1.0}
    receipts, _ = asyncio.run(sent(answer, job))
    assert 1 <= len(receipts) <= 6
    assert [one.conversation for one in receipts] == list(range(len(receipts)))
    assert all(one.error == "" and one.sent_s <= 60 for one in receipts)
