"""An engine's streams, each read on its own: no messages are shared."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.engine.stream import AsyncEngine
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest


async def lone_stream(streams: AsyncEngine, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
    """The request's deltas."""
    async with aclosing(streams.stream(request, reader=request.request_id)) as bundles:
        async for (part,) in bundles:
            assert part.request_id == request.request_id
            yield part.delta
