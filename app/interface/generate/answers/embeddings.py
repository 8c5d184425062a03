"""Embeddings: the engine pools an input's final hidden states and scales the vector to length 1.

Each input is one request to the engine, which generates no token. It knows nothing of HTTP.
"""

import asyncio
import base64
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from app.interface.wire.embeddings import EmbeddingRequest
from app.messages.outputs import Generate
from app.messages.requests import GenerateRequest

MAX_CONCURRENT_INPUTS = 4
"""Inputs of one request that run concurrently: a long list must not fill the workers' queues."""


async def embed(requests: Sequence[GenerateRequest], generate: Generate) -> Sequence[NDArray[np.float32]]:
    """Returns the vectors in order, each float32 [hidden_size]. Stops and raises at the first error."""
    vectors: dict[int, NDArray[np.float32]] = {}
    waiting = iter(enumerate(requests))

    async def embed_waiting() -> None:
        for index, request in waiting:
            vectors[index] = await _embedded(request, generate)

    tasks = [asyncio.create_task(embed_waiting()) for _ in range(min(MAX_CONCURRENT_INPUTS, len(requests)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [vectors[index] for index in range(len(requests))]


async def _embedded(request: GenerateRequest, generate: Generate) -> NDArray[np.float32]:
    async with aclosing(generate(request)) as deltas:
        async for delta in deltas:
            if delta.prompt is not None and delta.prompt.embedding is not None:
                return delta.prompt.embedding
    raise RuntimeError("the worker ended a stream without an embedding")


def shortened(vectors: NDArray[np.float32], dimensions: int, *, normalized: bool) -> NDArray[np.float32]:
    """Returns the first numbers of vectors [n, size]; normalized: of length 1 again."""
    cut = vectors[:, :dimensions]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.float32(1e-12)) if normalized else cut


def embeddings_body(
    body: EmbeddingRequest, vectors: Sequence[NDArray[np.float32]] | NDArray[np.float32], tokens: int
) -> bytes:
    """Returns an `EmbeddingResponse` as JSON. orjson writes each float32 with the fewest digits that identify it.

    Each vector is serialized by its own call, because orjson holds the GIL meanwhile.
    """
    data = []
    for i, vector in enumerate(vectors):
        embedding: Any = np.ascontiguousarray(vector, "<f4")
        if body.encoding_format == "base64":
            embedding = base64.b64encode(embedding.tobytes()).decode()
        entry = {"object": "embedding", "index": i, "embedding": embedding}
        data.append(orjson.Fragment(orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY)))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"object": "list", "data": data, "model": body.model, "usage": usage}
    return orjson.dumps(answer)
