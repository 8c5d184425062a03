"""Texts as vectors: an input's final hidden states, pooled by the engine and of length 1.

Each input is one request to the engine, which makes no token. It knows neither HTTP nor how a vector is written.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.messages.outputs import Generate
from app.messages.requests import GenerateRequest

AT_ONCE = 4
"""Inputs of one request that are with the workers at once: a long list must not fill their queues."""


async def embed(
    requests: Sequence[GenerateRequest], tenant: bytes, generate: Generate
) -> Sequence[NDArray[np.float32]]:
    """The vectors, in the inputs' order, each [hidden_size]. Raises what `generate` raises, and asks no more then."""
    vectors: dict[int, NDArray[np.float32]] = {}
    waiting = iter(enumerate(requests))

    async def work() -> None:
        for index, request in waiting:
            vectors[index] = await _embedded(replace(request, tenant=tenant), generate)

    workers = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(requests)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [vectors[index] for index in range(len(requests))]


async def _embedded(request: GenerateRequest, generate: Generate) -> NDArray[np.float32]:
    async with aclosing(generate(request)) as deltas:
        async for delta in deltas:
            if delta.prompt is not None and delta.prompt.embedding is not None:
                return delta.prompt.embedding
    raise RuntimeError("the worker ended a stream without an embedding")
