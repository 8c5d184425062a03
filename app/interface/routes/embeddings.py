"""`/v1/embeddings`."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.answers.answer import Answer, WholeAnswer
from app.interface.answers.embeddings import embed, embeddings_body
from app.interface.callers import Caller
from app.interface.planning.embeddings import plan_embeddings
from app.interface.reception import Reception
from app.interface.request_record import RequestRecord, record_of
from app.interface.wire.embeddings import EmbeddingRequest

MANY_NUMBERS = 32 * 1024
"""Answers of so many are written in a thread, so that other streams go on."""


class EmbeddingRoutes:
    """The route, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        record = record_of(request)

        def answer(body: EmbeddingRequest, caller: Caller, request_id: str) -> Answer:
            return self._answer(body, caller, request_id, record)

        return await self._reception.answer(request, "embd-", EmbeddingRequest, answer)

    def _answer(self, body: EmbeddingRequest, caller: Caller, request_id: str, record: RequestRecord) -> Answer:
        served = self._reception.service.model(body.model)
        requests = plan_embeddings(served.chat, body, caller, request_id)
        tokens = sum(len(each.prompt_token_ids) for each in requests)
        record.asks(body.model, tokens)

        async def embedded() -> bytes:
            vectors = await embed(requests, caller.metered(body.model, tokens, served.generate))
            if sum(vector.size for vector in vectors) < MANY_NUMBERS:
                return embeddings_body(body, vectors, tokens)
            return await self._reception.in_thread(lambda: embeddings_body(body, vectors, tokens))

        return WholeAnswer(embedded)
