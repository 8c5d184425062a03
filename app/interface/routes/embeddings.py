"""`/v1/embeddings`: the stages of requests that generate no token."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.encode.encoders import Encoders
from app.interface.generate.answers.answer import Answer, WholeAnswer
from app.interface.generate.answers.embeddings import embed, embeddings_body, shortened
from app.interface.generate.planning.embeddings import plan_embeddings, plan_texts
from app.interface.generate.reception import Endpoint, Received, Reception
from app.interface.generate.sequences import sequences
from app.interface.generate.service import ServedModel
from app.interface.text.encoder_model import EncoderModel
from app.interface.wire.embeddings import EmbeddingRequest

MANY_NUMBERS = 32 * 1024
"""Answers of this size are serialized in a thread, so that streams continue."""


EMBEDDINGS = Endpoint("embd-", EmbeddingRequest)


class EmbeddingRoutes:
    """The route of one service."""

    def __init__(self, reception: Reception, encoders: Encoders) -> None:
        self._reception = reception
        self._encoders = encoders

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        return await self._reception.answer(request, EMBEDDINGS, self.stages)

    async def stages(self, received: Received[EmbeddingRequest]) -> "Embedding":
        """Returns the stages of a received request."""
        return Embedding(self._reception, self._encoders, received)


class Embedding:
    """The stages of one request: see `app.interface.generate.reception.Stages`."""

    may_plan_again = True

    def __init__(self, reception: Reception, encoders: Encoders, received: Received[EmbeddingRequest]) -> None:
        self._reception = reception
        self._encoders = encoders
        self.received = received

    def answer(self) -> Answer:
        body, caller, service = self.received.body, self.received.caller, self._reception.service
        name = service.name_of(body.model)
        served = service.model(name)
        if served.encoder is not None:
            return WholeAnswer(self._encoded(served, served.encoder, name))
        requests = plan_embeddings(served.chat, body, caller, self.received.answer_id)
        tokens = sum(len(each.prompt_token_ids) for each in requests)
        self.received.record.note_model(name, tokens)

        async def embedded() -> bytes:
            vectors = await embed(requests, sequences(service, served.generate, caller, name, tokens))
            if sum(vector.size for vector in vectors) < MANY_NUMBERS:
                return embeddings_body(body, vectors, tokens)
            return await self._reception.in_thread(lambda: embeddings_body(body, vectors, tokens))

        return WholeAnswer(embedded)

    def _encoded(
        self, served: ServedModel, encoder: EncoderModel, name: str
    ) -> Callable[[], Coroutine[Any, Any, bytes]]:
        """Plans an encoder's answer."""
        body, caller = self.received.body, self.received.caller
        texts = plan_texts(encoder, body)
        tokens = sum(map(len, texts))
        self.received.record.note_model(name, tokens)

        async def embedded() -> bytes:
            vectors = await self._encoders.run(served, name, texts, caller=caller, priority=caller.priority)
            if body.dimensions is not None and body.dimensions < encoder.dimensions:
                vectors = shortened(vectors, body.dimensions, normalized=encoder.normalized)
            if vectors.size < MANY_NUMBERS:
                return embeddings_body(body, vectors, tokens)
            return await self._reception.in_thread(lambda: embeddings_body(body, vectors, tokens))

        return embedded

    def abandon(self) -> None:
        """Does nothing: nothing is stored."""
