"""`/v1/embeddings`: the wire of vectors."""

import base64
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
import orjson
from fastapi import Request
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import BaseModel, Discriminator, Field, Tag

from app import errors
from app.embeddings import embed, plan_embeddings
from app.engine.types import GenerateRequest
from app.errors import ApiError
from app.http_service import Reception, ServedModel
from app.openai_types import Identifier, Text, Tokens, Wire, prompt_kind
from app.sse import ClientGoneError, until_disconnect

MAX_INPUTS = 2048
"""OpenAI's own limit."""
MANY_NUMBERS = 32 * 1024
"""Answers of so many are written in a thread, so that other streams go on."""

Input = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("texts")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[list[Tokens], Field(max_length=MAX_INPUTS, fail_fast=True), Tag("many_tokens")],
    Discriminator(
        prompt_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string, a list of strings, a list of token ids, or a list of those",
    ),
]


class EmbeddingRequest(Wire):
    """`POST /v1/embeddings`."""

    model: Identifier
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """The model's own size; no other is to be had."""
    user: Identifier | None = None
    pooling: Literal["mean", "last"] | None = None
    """Extension: the mean of all tokens' final hidden states, or the last one's; none: the mean."""

    @property
    def inputs(self) -> Sequence[str | Sequence[int]]:
        """The inputs, each a text or a list of token ids."""
        match self.input:
            case str(text):
                return [text]
            case [int(), *_] as token_ids:
                return [cast(list[int], token_ids)]
            case inputs:
                return cast(list[str] | list[list[int]], inputs)


class Embedding(BaseModel):
    """One input's vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """Its numbers, or base64 of them as little-endian float32."""


class EmbeddingUsage(BaseModel):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """A vector of length 1 for each input."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


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
