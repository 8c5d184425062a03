"""Server-sent events: OpenAI's chunks as bytes, and the HTTP response that streams them.

A chunk differs from the last one in its text only, so everything else is serialized once per stream; what
queues up while the socket is busy goes out in one write. It knows nothing of tokens, models or Ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.answer_types import Usage
from app.errors import ApiError
from app.tool_calls import ToolCallDelta

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"

# Line ends to Unicode and to no event stream: a client that splits decoded text at every line end (httpx' `iter_lines`,
# for one) would cut an event in two at them. JSON may hold them as they are, and as escapes.
_LINE_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029"]


def event_json(value: Any) -> bytes:
    """`value` as JSON that is one line to every client, to those too that know more line ends than the standard."""
    return _one_line(orjson.dumps(value))


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    return data


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


class ChunkWriter:
    """Writes the chunks of one stream."""

    def __init__(
        self,
        kind: Literal["chat", "completion"],
        response_id: str,
        created: int,
        model: str,
        *,
        include_usage: bool,
    ) -> None:
        self._is_chat = kind == "chat"
        head = {
            "id": response_id,
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._head = b"data: " + event_json(head)[:-1] + b',"choices":['
        # With include_usage every chunk has the field, null but in the last.
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text = b'"delta":{"content":%b}' if self._is_chat else b'"text":%b'
        self._empty = b'"delta":{}' if self._is_chat else b'"text":""'

    def start(self, index: int) -> bytes:
        """What opens a choice: in chat its role, in completions nothing."""
        if not self._is_chat:
            return b""
        return self._chunk(index, b'"delta":{"role":"assistant","content":""}', None)

    def delta(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        logprobs: Mapping[str, Any] | None = None,
        calls: Sequence[ToolCallDelta] = (),
    ) -> bytes:
        """New text, scores and calls, and the end of the choice if it has one: none or several chunks."""
        chunks = b""
        if text or (logprobs is not None and any(logprobs.values())):
            chunks = self._chunk(index, self._text % event_json(text), None, logprobs)
        for call in calls:
            if call.name is None and not call.arguments:
                continue  # its end, of which chunks don't tell
            chunks += self._chunk(index, b'"delta":{"tool_calls":[%b]}' % event_json(_call_delta(call)), None)
        if finish_reason is not None:
            chunks += self._chunk(index, self._empty, finish_reason)
        return chunks

    def usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream that was asked for usage: no choices, and the numbers."""
        return self._head + b'],"usage":' + event_json(usage.model_dump()) + b"}\n\n"

    def _chunk(
        self, index: int, content: bytes, finish_reason: str | None, logprobs: Mapping[str, Any] | None = None
    ) -> bytes:
        reason = b"null" if finish_reason is None else b'"%b"' % finish_reason.encode()
        return b'%b{"index":%d,%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            index,
            content,
            b"null" if logprobs is None else event_json(logprobs),
            reason,
            self._tail,
        )


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    function = {"arguments": call.arguments}
    if call.name is None:
        return {"index": call.index, "function": function}
    return {"index": call.index, "id": call.call_id, "type": "function", "function": {"name": call.name, **function}}


def error_event(error: ApiError) -> bytes:
    """An error after the stream has begun, when the status can't say it any more."""
    return b"data: " + _one_line(error.body()) + b"\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits `work`, or cancels it and raises ClientGoneError when the client goes. The body must be read."""
    task: asyncio.Task[Result] = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _cancelled(task, watcher)


async def first_of(receive: Receive, items: AsyncGenerator[Result, None]) -> Result:
    """The first item; a client that goes before it comes, or an error, closes the generator. Raises ClientGoneError."""

    async def first() -> Result:
        return await anext(items)

    try:
        return await until_disconnect(receive, first())
    except BaseException:
        await items.aclose()
        raise


class EventStream(StreamingResponse):
    """Streams ready-made events; a client that goes away closes their generator at once."""

    def __init__(self, events: AsyncGenerator[bytes, None], source: AsyncGenerator[Any, None]) -> None:
        """source: what `events` reads; closed too, for a generator that was never begun closes nothing."""
        # no-transform and X-Accel-Buffering: proxies must neither compress nor collect the events.
        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client is gone."""
        try:
            await until_disconnect(receive, self.stream_response(send))
        except (ClientGoneError, OSError):
            pass
        finally:
            await self._events.aclose()
            await self._source.aclose()


async def _disconnected(receive: Receive) -> None:
    """Returns when the client is gone."""
    while True:
        try:
            message = await receive()
        except Exception:  # Serve's proxy lost the connection in its own way
            return
        if message["type"] == "http.disconnect":
            return


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    ended: Awaitable[Any] = asyncio.gather(*tasks, return_exceptions=True)
    await ended
