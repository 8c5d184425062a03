"""Work that is cancelled when the client disconnects, and streams of server-sent events.

It knows nothing of what the events say, nor of tokens, models or Ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

Result = TypeVar("Result")

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment between events. Clients ignore it; it keeps the connection alive."""


class ClientGoneError(Exception):
    """The client closed the connection."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits `work`; cancels it and raises ClientGoneError if the client disconnects. The body must have been read."""
    task: asyncio.Task[Result] = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await cancelled(task, watcher)


async def first_of(items: AsyncGenerator[Result, None]) -> Result:
    """Returns the first item; if that raises, closes the generator."""
    try:
        return await anext(items)
    except BaseException:
        await items.aclose()
        raise


class EventStream(StreamingResponse):
    """Streams events; the generator is closed as soon as the client disconnects."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        source: AsyncGenerator[Any, None] | None = None,
        ended: Callable[[], None] | None = None,
        *,
        keep_alive_s: float = 0.0,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        """source: what `events` reads; closed too, because a generator that was never started does not close it.

        ended: called after that. keep_alive_s: `keep_alive` is sent after this much silence; 0: never.
        """
        # no-transform and X-Accel-Buffering: proxies must neither compress nor buffer the events.
        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self.events = events
        self._source = source
        self._ended = ended
        self._keep_alive_s = keep_alive_s
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client disconnects."""
        try:
            if scope.get("method") != "HEAD":
                await until_disconnect(receive, self._sent(send))
            else:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientGoneError, OSError):
            pass
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes the generators and calls `ended`."""
        try:
            await self.events.aclose()
            if self._source is not None:
                await self._source.aclose()
        finally:  # also if closing fails or is cancelled
            if self._ended is not None:
                self._ended()

    async def _sent(self, send: Send) -> None:
        if not self._keep_alive_s:
            await self.stream_response(send)
            return
        kept = _KeptAlive(send, self._keep_alive_s, self._keep_alive)
        keeping = asyncio.create_task(kept.keep())
        try:
            await self.stream_response(kept.send)
        finally:
            await cancelled(keeping)


class LateStream(EventStream):
    """Sends what keeps the connection alive until another stream is ready, and then that stream's events."""

    def __init__(
        self,
        beginning: "asyncio.Task[EventStream]",
        failed: Callable[[Exception], bytes],
        first: bytes = KEEP_ALIVE,
        *,
        keep_alive_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        """beginning: returns the other stream; cancelled when the client disconnects, and then cleans up itself.

        failed: converts its exception to events. first: what is sent at once.
        """
        super().__init__(_late(beginning, failed, first), keep_alive_s=keep_alive_s, keep_alive=keep_alive)
        self._beginning = beginning

    async def aclose(self) -> None:
        """Closes the other stream, or cancels `beginning`."""
        await abandoned(self._beginning)
        await self.events.aclose()


async def abandoned(beginning: asyncio.Task[Any]) -> None:
    """Cancels the task, or closes the stream it has returned."""
    await cancelled(beginning)
    if beginning.cancelled() or beginning.exception() is not None:
        return
    stream = beginning.result()
    if isinstance(stream, EventStream):
        await stream.aclose()


async def _late(
    beginning: "asyncio.Task[EventStream]", failed: Callable[[Exception], bytes], first: bytes
) -> AsyncGenerator[bytes, None]:
    yield first
    try:
        stream = await beginning
    except Exception as error:
        yield failed(error)
        return
    async for piece in stream.events:
        yield piece


class _KeptAlive:
    """An ASGI `send` that also sends an event without meaning after a period of silence."""

    def __init__(self, send: Send, period_s: float, event: bytes) -> None:
        self._send = send
        self._period_s = period_s
        self._event = event
        self._sending = asyncio.Lock()
        self._now_s = asyncio.get_running_loop().time
        self._sent_s = self._now_s()

    async def send(self, message: Message) -> None:
        async with self._sending:
            await self._send(message)
            self._sent_s = self._now_s()

    async def keep(self) -> None:
        """Sends such events until cancelled; at most one while the client reads nothing."""
        while True:
            await asyncio.sleep(self._sent_s + self._period_s - self._now_s())
            async with self._sending:  # so it never follows the last message, which has updated the time
                if self._now_s() >= self._sent_s + self._period_s:
                    await self._send({"type": "http.response.body", "body": self._event, "more_body": True})
                    self._sent_s = self._now_s()


async def _disconnected(receive: Receive) -> None:
    """Returns when the client disconnects."""
    while True:
        try:
            message = await receive()
        except Exception:  # how Serve's proxy reports a lost connection
            return
        if message["type"] == "http.disconnect":
            return


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks and waits for them. Ignores their errors."""
    for task in tasks:
        task.cancel()
    ended: Awaitable[Any] = asyncio.gather(*tasks, return_exceptions=True)
    await ended
