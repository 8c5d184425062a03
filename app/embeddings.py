"""Texts as vectors: an input's final hidden states, pooled by the engine and of length 1.

Each input is one request to the engine, which makes no token. It knows neither HTTP nor how a vector is written.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app import errors
from app.chat import ChatModel
from app.engine.types import GenerateRequest, SamplingParams
from app.generation import Generate

AT_ONCE = 4
"""Inputs of one request that are with the workers at once: a long list must not fill their queues."""


def plan_embeddings(
    model: ChatModel,
    inputs: Sequence[str | Sequence[int]],
    pooling: Literal["mean", "last"],
    request_id: str,
) -> tuple[GenerateRequest, ...]:
    """A request for each input; tokenizes those that are text. Raises ApiError (400) naming the input."""
    requests = []
    for i, given in enumerate(inputs):
        field = f"input[{i}]" if len(inputs) > 1 else "input"
        if isinstance(given, str):
            token_ids: Sequence[int] = model.raw_prompt(given, field)
        else:
            token_ids = given
            model.check_vocabulary(token_ids, field)
        if not token_ids:
            raise errors.invalid(f"'{field}' is empty, and this model has no token to start from.", field)
        if len(token_ids) > model.context_tokens:
            raise errors.context_length_exceeded(len(token_ids), 0, model.context_tokens, field)
        requests.append(
            GenerateRequest(
                request_id=f"{request_id}-{i}",
                prompt_token_ids=tuple(token_ids),
                max_new_tokens=0,
                sampling=SamplingParams(temperature=0.0),
                pooling=pooling,
            )
        )
    return tuple(requests)


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
