"""Server-sent events: OpenAI's chunks as bytes, and the HTTP response that streams them.

A chunk differs from the last one in its text only, so everything else is serialized once per stream; what
queues up while the socket is busy goes out in one write. It knows nothing of tokens, models or Ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


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
