"""`/v1/rerank`, `/v2/rerank` and `/v1/score`: how well texts answer a query."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response

from app.interface.encode.encoders import Encoders, Scored
from app.interface.generate.answers.answer import Answer, WholeAnswer
from app.interface.generate.reception import Endpoint, Received, Reception
from app.interface.request import errors
from app.interface.text.encoder_model import EncoderModel
from app.interface.wire.rerank import RerankRequest, RerankV2Request, ScoreRequest

_CHARACTERS_OF_A_TOKEN = 64
"""More than a token ever has: of a long text only its beginning is tokenized."""
RERANK = Endpoint("rerank-", RerankRequest)
RERANK_V2 = Endpoint("rerank-", RerankV2Request)
SCORE = Endpoint("score-", ScoreRequest)


class RerankRoutes:
    """The routes of one service."""

    def __init__(self, reception: Reception, encoders: Encoders) -> None:
        self._reception = reception
        self._encoders = encoders

    async def rerank(self, request: Request) -> Response:
        """`POST /v1/rerank`."""
        return await self._reception.answer(request, RERANK, self._ranking)

    async def rerank_v2(self, request: Request) -> Response:
        """`POST /v2/rerank`."""
        return await self._reception.answer(request, RERANK_V2, self._ranking)

    async def score(self, request: Request) -> Response:
        """`POST /v1/score`."""
        return await self._reception.answer(request, SCORE, self._scoring)

    async def _ranking(self, received: Received[Any]) -> "Scoring":
        received = self._named(received)
        body: RerankRequest = received.body
        texts, most = body.texts, body.max_tokens_per_doc
        if most is not None:
            encoder = self._encoders.model(body.model)
            texts = await self._reception.in_thread(lambda: [_cut(encoder, text, most) for text in texts])
        return Scoring(self._encoders, received, [(body.query, text) for text in texts], lambda s: _ranked(received, s))

    def _named(self, received: Received[Any]) -> Received[Any]:
        if received.body.model:
            return received
        name = self._encoders.reranker or self._encoders.default or ""
        return replace(received, body=received.body.model_copy(update={"model": name}))

    async def _scoring(self, received: Received[ScoreRequest]) -> "Scoring":
        received = self._named(received)
        return Scoring(self._encoders, received, _pairs(received.body), lambda scored: _scores(received, scored))


class Scoring:
    """The stages of one request: see `app.interface.generate.reception.Stages`."""

    may_plan_again = True

    def __init__(
        self,
        encoders: Encoders,
        received: Received[Any],
        pairs: Sequence[tuple[str, str]],
        written: Callable[[Scored], dict[str, Any]],
    ) -> None:
        self._encoders = encoders
        self.received = received
        self._pairs = pairs
        self._written = written

    def answer(self) -> Answer:
        """Plans the request; the worker is asked when the answer is read. Raises ApiError."""
        received = self.received
        self._encoders.served(received.body.model)

        async def scored() -> bytes:
            caller = received.caller
            found = await self._encoders.score_pairs(
                self._pairs, caller=caller, model=received.body.model, priority=caller.priority
            )
            received.record.note_model(received.body.model, sum(found.tokens))
            return orjson.dumps(self._written(found))

        return WholeAnswer(scored)

    def abandon(self) -> None:
        """Does nothing: nothing is stored."""


def _cut(encoder: EncoderModel, text: str, most: int) -> str:
    """Returns a text without what comes after its first `most` tokens."""
    most = min(most, encoder.max_tokens)
    some = text[: most * _CHARACTERS_OF_A_TOKEN]
    offsets = encoder.offsets(some)
    return some[: offsets[most - 1][1]] if len(offsets) > most else text


def _pairs(body: ScoreRequest) -> list[tuple[str, str]]:
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        message = f"'text_1' has {len(first)} texts and 'text_2' {len(second)}: give one, or as many."
        raise errors.invalid(message, "text_1")
    return list(zip(first, second, strict=True))


def _ranked(received: Received[RerankRequest], scored: Scored) -> dict[str, Any]:
    body = received.body
    scores, texts = scored.scores.tolist(), body.texts
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if body.return_documents:
        results = [{**each, "document": {"text": texts[each["index"]]}} for each in results]
    return {"id": received.answer_id, "model": body.model, "results": results, "usage": _usage(scored)}


def _scores(received: Received[ScoreRequest], scored: Scored) -> dict[str, Any]:
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scored.scores.tolist())]
    return {
        "id": received.answer_id,
        "object": "list",
        "created": int(time.time()),
        "model": received.body.model,
        "data": data,
        "usage": _usage(scored),
    }


def _usage(scored: Scored) -> dict[str, int]:
    return {"prompt_tokens": sum(scored.tokens), "total_tokens": sum(scored.tokens)}
