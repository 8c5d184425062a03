"""Answering while the client listens: work that ends when the client disconnects, and streams of server-sent events.

It knows nothing of what the events say, nor of tokens, models or Ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


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
        await _cancelled(task, watcher)


async def first_of(receive: Receive, items: AsyncGenerator[Result, None]) -> Result:
    """The first item. Closes the generator on an error, and if the client disconnects before.

    Raises ClientGoneError, and what the generator raises.
    """

    async def first() -> Result:
        return await anext(items)

    try:
        return await until_disconnect(receive, first())
    except BaseException:
        await items.aclose()
        raise


class EventStream(StreamingResponse):
    """Streams events; their generator is closed as soon as the client disconnects."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        source: AsyncGenerator[Any, None] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """source: what `events` reads; closed too, because a generator that was never begun does not close it.

        ended: called after that.
        """
        # no-transform and X-Accel-Buffering: proxies must neither compress nor collect the events.
        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events
        self._source = source
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client disconnects."""
        try:
            await until_disconnect(receive, self.stream_response(send))
        except (ClientGoneError, OSError):
            pass
        finally:
            try:
                await self._events.aclose()
                if self._source is not None:
                    await self._source.aclose()
            finally:  # also if closing fails, or is cancelled
                if self._ended is not None:
                    self._ended()


async def _disconnected(receive: Receive) -> None:
    """Returns when the client disconnects."""
    while True:
        try:
            message = await receive()
        except Exception:  # how Serve's proxy reports a lost connection
            return
        if message["type"] == "http.disconnect":
            return


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    ended: Awaitable[Any] = asyncio.gather(*tasks, return_exceptions=True)
    await ended
