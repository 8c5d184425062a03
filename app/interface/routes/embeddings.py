"""`/v1/embeddings`: the wire of vectors."""

import base64
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import Request
from fastapi.responses import Response
from numpy.typing import NDArray

from app.interface import errors
from app.interface.answers.embeddings import embed
from app.interface.errors import ApiError
from app.interface.planning.embeddings import plan_embeddings
from app.interface.reception import Reception
from app.interface.service import ServedModel
from app.interface.streaming import ClientGoneError, until_disconnect
from app.interface.wire.embeddings import EmbeddingRequest
from app.messages.requests import GenerateRequest

MANY_NUMBERS = 32 * 1024
"""Answers of so many are written in a thread, so that other streams go on."""


class EmbeddingRoutes:
    """The route, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        request_id = f"embd-{uuid.uuid4().hex}"

        def planned(body: EmbeddingRequest) -> tuple[ServedModel, tuple[GenerateRequest, ...]]:
            served = self._reception.service.model(body.model)
            if body.dimensions not in (None, served.chat.hidden_size):
                message = f"'dimensions' is not supported; this model's vectors have {served.chat.hidden_size}."
                raise errors.invalid(message, "dimensions", "unsupported_parameter")
            return served, plan_embeddings(served.chat, body.inputs, body.pooling or "mean", request_id)

        try:
            body, (served, requests) = await self._reception.take(request, EmbeddingRequest, planned)
            work = embed(requests, request.state.tenant, served.generate)
            vectors = await until_disconnect(request.receive, work)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise self._reception.as_api_error(request_id)(error) from None
        tokens = sum(len(each.prompt_token_ids) for each in requests)
        numbers = sum(vector.size for vector in vectors)
        if numbers < MANY_NUMBERS:
            return Response(_answer(body, vectors, tokens), media_type="application/json")
        answer = await self._reception.in_thread(lambda: _answer(body, vectors, tokens))
        return Response(answer, media_type="application/json")


def _answer(body: EmbeddingRequest, vectors: Sequence[NDArray[np.float32]], tokens: int) -> bytes:
    """An `EmbeddingResponse` as JSON: orjson writes each float32 with as few digits as tell it apart.

    Vector by vector, for orjson keeps the interpreter to itself while it writes.
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
