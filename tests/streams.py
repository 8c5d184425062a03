"""An engine's streams, each read on its own: no messages are shared. And engines that wait for who reads them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from app.engine.model_runner import Batch
from app.engine.stream import AsyncEngine
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest


async def lone_stream(streams: AsyncEngine, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
    """The request's deltas."""
    async with aclosing(streams.stream(request, reader=request.request_id)) as bundles:
        async for (part,) in bundles:
            assert part.request_id == request.request_id
            yield part.delta


def with_the_loop() -> Callable[[Batch], None]:
    """A `before_step` that lets this event loop take what came: no message has more than two steps' tokens.

    On a busy machine an engine may otherwise have made all of an output before the loop gets a turn.
    """
    loop = asyncio.get_running_loop()

    async def take_what_came() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    return lambda _: asyncio.run_coroutine_threadsafe(take_what_came(), loop).result(60)
