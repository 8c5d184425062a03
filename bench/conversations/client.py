"""A process of HTTP clients: sends conversations when they arrive, streamed, and notes when each event came.

Reads a JSON job from stdin and prints a JSON report. Standard library only. While requests run it only stores lines
with their times, because the server runs on the same cores; they are parsed at the end. The API key is
REDOUBT_API_KEY. Knows OpenAI's streams, and nothing of any server.
"""

import asyncio
import contextlib
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

LINE_LIMIT_BYTES = 1 << 20
TIMEOUT, CUT = "timeout", "not done when the run was ended"
"""Errors of requests that took too long themselves, or that were open when the run ended."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of a request. Times are seconds from the start of the run."""

    conversation: int
    turn: int
    due_s: float
    """When it was to be sent: the conversation's arrival, or the end of the answer before."""
    sent_s: float
    end_s: float
    event_times_s: list[float]
    """When each event with text came."""
    prompt_tokens: int
    """Tokens as counted by the server, as are all tokens here."""
    cached_tokens: int
    tokens: int
    error: str = ""
    """Empty, or what kind of failure, in a few words."""


class RequestError(Exception):
    """A request failed; the message is the kind."""


class Client:
    """Sends the conversations of one job."""

    def __init__(self, job: dict[str, Any]) -> None:
        """job: url, conversations (lists of {"path", "body"}), arrivals_s or at_once, timeout_s, end_by_s.

        begin_within_s, if it is there: in a closed loop no conversation begins later.
        """
        place = urlsplit(job["url"])
        self._secure = place.scheme == "https"
        self._host, self._port = place.hostname or "", place.port or (443 if self._secure else 80)
        self._prefix = place.path.rstrip("/")
        self._conversations = [[self._request(one) for one in requests] for requests in job["conversations"]]
        self._arrivals_s: list[float] | None = job["arrivals_s"]
        self._at_once: int = job["at_once"]
        self._timeout_s: float = job["timeout_s"]
        self._end_by_s: float = job["end_by_s"]
        self._begin_within_s: float | None = job.get("begin_within_s")
        self._start_s = 0.0

    async def run(self) -> list[Receipt]:
        """Sends all; returns a receipt for each request that was sent."""
        self._start_s = time.perf_counter()
        numbers = iter(range(len(self._conversations)))
        if self._arrivals_s is None:
            loops = [self._loop(numbers) for _ in range(self._at_once)]
            found = await asyncio.gather(*loops)
        else:
            arrivals = enumerate(self._arrivals_s)
            found = await asyncio.gather(*(self._conversation(number, at_s) for number, at_s in arrivals))
        return sorted((one for some in found for one in some), key=lambda one: (one.conversation, one.turn))

    async def _loop(self, numbers: Iterator[int]) -> list[Receipt]:
        """One client of a closed loop: the next conversation as soon as its last one has ended."""
        receipts: list[Receipt] = []
        for number in numbers:
            if self._begin_within_s is not None and self._now_s() > self._begin_within_s:
                break
            receipts += await self._conversation(number, self._now_s())
        return receipts

    async def _conversation(self, number: int, due_s: float) -> list[Receipt]:
        receipts: list[Receipt] = []
        await asyncio.sleep(max(0.0, due_s - self._now_s()))
        for turn, request in enumerate(self._conversations[number]):
            receipt = await self._send(number, turn, due_s, request)
            receipts.append(receipt)
            if receipt.error:
                break
            due_s = receipt.end_s
        return receipts

    async def _send(self, number: int, turn: int, due_s: float, request: bytes) -> Receipt:
        sent_s, error = self._now_s(), ""
        events: list[tuple[float, bytes]] = []
        allowed_s = min(self._timeout_s, self._end_by_s - sent_s)
        try:
            async with asyncio.timeout(max(0.0, allowed_s)):
                await self._stream(request, events)
        except TimeoutError:
            error = TIMEOUT if self._timeout_s < self._end_by_s - sent_s else CUT
        except RequestError as failure:
            error = str(failure)
        except (OSError, asyncio.IncompleteReadError, ValueError) as failure:
            error = f"connection: {type(failure).__name__}"
        return _receipt(number, turn, due_s, sent_s, self._now_s(), events, error)

    async def _stream(self, request: bytes, events: list[tuple[float, bytes]]) -> None:
        """One request on its own connection; its events with their times. Raises RequestError, OSError."""
        tls = ssl.create_default_context() if self._secure else None
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=LINE_LIMIT_BYTES, ssl=tls)
        try:
            writer.write(request)
            status = (await reader.readline()).split()
            if len(status) < 2 or status[1] != b"200":
                raise RequestError(f"status {status[1].decode() if len(status) > 1 else 'none'}")
            chunked = False
            while (header := await reader.readline()) not in (b"\r\n", b""):
                chunked |= header.lower().replace(b" ", b"").startswith(b"transfer-encoding:chunked")
            async for line in _lines(_chunks(reader) if chunked else _pieces(reader)):
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: {"):
                    events.append((self._now_s(), line))
            raise RequestError("ended in the middle")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _request(self, one: dict[str, Any]) -> bytes:
        body = json.dumps(one["body"]).encode()
        key = os.environ.get("REDOUBT_API_KEY")
        head = [
            f"POST {self._prefix}{one['path']} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        return "\r\n".join([*head, "", ""]).encode() + body

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a chunked body."""
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a body that ends with its connection."""
    while piece := await reader.read(1 << 16):
        yield piece


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, whatever the pieces' borders are."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line


def _receipt(
    number: int, turn: int, due_s: float, sent_s: float, end_s: float, events: Sequence[tuple[float, bytes]], error: str
) -> Receipt:
    times_s: list[float] = []
    usage: dict[str, Any] = {}
    for at_s, line in events:
        try:
            event = json.loads(line[6:])
        except ValueError:
            error = error or "an event that is no JSON"
            continue
        if "error" in event:
            error = error or "error event"
        usage = event.get("usage") or usage
        if any(_has_text(choice) for choice in event.get("choices") or ()):
            times_s.append(round(at_s, 5))
    return Receipt(
        conversation=number,
        turn=turn,
        due_s=due_s,
        sent_s=sent_s,
        end_s=end_s,
        event_times_s=times_s,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        tokens=usage.get("completion_tokens", 0),
        error=error,
    )


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether a choice of an event has text: of an answer, or of the reasoning before it."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))


if __name__ == "__main__":
    print(json.dumps([asdict(receipt) for receipt in asyncio.run(Client(json.load(sys.stdin)).run())]))
