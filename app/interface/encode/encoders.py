"""Asks encoders for vectors and rerankers for scores; knows the service, and no HTTP.

Any number of texts becomes messages of some thousand tokens, of which a few are at the workers at a time.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.interface.generate.sequences import sequences
from app.interface.generate.service import ServedModel, Service
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.encoder_model import EncoderModel, Kind, Tokens, packed
from app.messages.outputs import Generate
from app.messages.requests import GenerateRequest, Priority

F32 = NDArray[np.float32]
Result = TypeVar("Result")
_MESSAGE_TOKENS: Final = 8192
_MESSAGE_TEXTS: Final = 256
_MESSAGES_AT_ONCE: Final = 2
"""Of one call, so that a long list leaves the workers' places to others."""
_FEW_CHARACTERS: Final = 4096
"""Texts of so many are tokenized at once, more in a thread."""
_MOST_PAIR_CHARACTERS: Final = 16 << 20
"""Of the pairs of one request: the tokens of all are in memory before the first is computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The vectors of some texts."""

    vectors: F32
    """[texts, dimensions], of length 1."""
    tokens: list[int]
    """Of each text, as it was computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """How well some texts answer a query."""

    scores: F32
    """[texts], 0 to 1."""
    tokens: list[int]
    """Of each pair."""


class Encoders:
    """The encoders and rerankers of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def default(self) -> str | None:
        """The first model that makes vectors; None: none is served."""
        return self._first(scores=False)

    @property
    def identity(self) -> str | None:
        """What tells the vectors of that model from those of others; None: none is served."""
        return None if self.default is None else self.model().identity

    @property
    def reranker(self) -> str | None:
        """The first reranker; None: none is served."""
        return self._first(scores=True)

    def model(self, name: str = "") -> EncoderModel:
        """Returns an encoder; "": the first that makes vectors. Raises ApiError (400, 404)."""
        return self.served(name)[1]

    def served(self, name: str) -> tuple[ServedModel, EncoderModel]:
        """Returns an encoder with its workers. Raises ApiError (400, 404)."""
        name = name or self.default or ""
        if not name:
            raise errors.invalid("No encoder is served: name one in the service's configuration.", "model")
        served = self._service.model(name)
        if served.encoder is None:
            known = ", ".join(own for own, each in self._service.models.items() if each.encoder is not None)
            raise errors.invalid(f"The model {name!r} is no encoder. Encoders here: {known or 'none'}.", "model")
        return served, served.encoder

    async def embed(
        self,
        texts: Sequence[str],
        *,
        caller: Caller,
        kind: Kind | None = None,
        model: str = "",
        priority: Priority = Priority.NORMAL,
    ) -> Embedded:
        """Returns the texts' vectors, of length 1 whatever the model says.

        Raises ApiError, and EngineError as `WorkerClient.generate` does.
        """
        name = self._service.name_of(model) if model else self.default or ""
        served, encoder = self.served(name)
        if encoder.scores:
            raise errors.invalid(f"The model {name!r} is a reranker: it makes no vectors.", "model")
        tokens = await self._tokenized(texts, lambda: [encoder.tokens(text, kind) for text in texts])
        vectors = await self.run(served, name, tokens, caller=caller, priority=priority)
        if not encoder.normalized:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return Embedded(vectors, [len(each) for each in tokens])

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        caller: Caller,
        model: str = "",
        priority: Priority = Priority.NORMAL,
    ) -> Scored:
        """Returns the texts' scores: a reranker's, or of another encoder the cosines. Raises as `embed` does."""
        return await self.score_pairs([(query, text) for text in texts], caller=caller, model=model, priority=priority)

    async def score_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        caller: Caller,
        model: str = "",
        priority: Priority = Priority.NORMAL,
    ) -> Scored:
        """The same of pairs of a query and a text."""
        name = self._service.name_of(model) if model else self.reranker or self.default or ""
        served, encoder = self.served(name)
        if not encoder.scores:
            return await self._cosines(pairs, caller=caller, model=name, priority=priority)
        texts = [text for pair in pairs for text in pair]
        if (characters := sum(map(len, texts))) > _MOST_PAIR_CHARACTERS:
            raise errors.invalid(
                f"Query and documents have {characters:,} characters, the query counted with each document; at most"
                f" {_MOST_PAIR_CHARACTERS:,} go into one request. Send fewer documents at a time, or a shorter query."
            )
        found = await self._tokenized(texts, lambda: _of_pairs(encoder, pairs))
        tokens, second = [ids for ids, _ in found], [number for _, number in found]
        logits = await self.run(served, name, tokens, second, caller=caller, priority=priority)
        scores = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
        return Scored(scores.astype(np.float32), [len(each) for each in tokens])

    async def _cosines(
        self, pairs: Sequence[tuple[str, str]], *, caller: Caller, model: str, priority: Priority
    ) -> Scored:
        queries = list(dict.fromkeys(query for query, _ in pairs))
        places = {query: place for place, query in enumerate(queries)}
        texts = [text for _, text in pairs]
        of_queries = await self.embed(queries, caller=caller, kind="query", model=model, priority=priority)
        of_texts = await self.embed(texts, caller=caller, kind="document", model=model, priority=priority)
        rows = of_queries.vectors[[places[query] for query, _ in pairs]]
        scores = np.clip(np.einsum("ij,ij->i", rows, of_texts.vectors), 0.0, 1.0)
        tokens = list(of_texts.tokens)
        for row, query in enumerate(query for query, _ in pairs):  # each query counts once
            if places.pop(query, None) is not None:
                tokens[row] += of_queries.tokens[queries.index(query)]
        return Scored(scores.astype(np.float32), tokens)

    async def run(
        self,
        served: ServedModel,
        name: str,
        texts: Sequence[Tokens],
        second: Sequence[int] | None = None,
        *,
        caller: Caller,
        priority: Priority,
    ) -> F32:
        """Returns what the model makes of tokenized texts, [texts, size]. Stops and raises at the first error.

        name: the model's own. second: as in `packed`.
        """
        if not texts:
            return np.zeros((0, 0 if served.encoder is None else served.encoder.dimensions), np.float32)
        identity = served.text.identity
        generate = sequences(self._service, served.generate, caller, name, sum(map(len, texts)))
        waiting = iter(list(_messages(texts)))
        results: dict[int, F32] = {}
        request_id = f"enc-{uuid.uuid4().hex}"

        async def ask() -> None:
            for begin, end in waiting:
                request = GenerateRequest(
                    request_id=f"{request_id}-{begin}",
                    prompt_token_ids=(),
                    max_new_tokens=0,
                    texts=packed(texts[begin:end], None if second is None else second[begin:end]),
                    model_identity=identity,
                    tenant=caller.tenant,
                    client=caller.client,
                    priority=priority,
                )
                results[begin] = await _result(generate, request)

        asking = [asyncio.create_task(ask()) for _ in range(_MESSAGES_AT_ONCE)]
        try:
            await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return np.concatenate([results[begin] for begin in sorted(results)])

    async def _tokenized(self, texts: Sequence[str], tokenize: Callable[[], Result]) -> Result:
        if sum(map(len, texts)) <= _FEW_CHARACTERS:
            return tokenize()
        return await asyncio.to_thread(tokenize)

    def _first(self, *, scores: bool) -> str | None:
        models = self._service.models.items()
        return next((name for name, each in models if each.encoder is not None and each.encoder.scores == scores), None)


def _of_pairs(encoder: EncoderModel, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
    """Tokenizes pairs; a query that several have, in a row, once."""
    found: list[tuple[list[int], int]] = []
    for query, group in groupby(pairs, lambda pair: pair[0]):
        found += encoder.pairs(query, [text for _, text in group])
    return found


def _messages(texts: Sequence[Tokens]) -> Iterator[tuple[int, int]]:
    """Divides texts into runs of _MESSAGE_TOKENS and _MESSAGE_TEXTS at most, or of one text."""
    begin = tokens = 0
    for number, text in enumerate(texts):
        if number > begin and (tokens + len(text) > _MESSAGE_TOKENS or number - begin == _MESSAGE_TEXTS):
            yield begin, number
            begin, tokens = number, 0
        tokens += len(text)
    yield begin, len(texts)


async def _result(generate: Generate, request: GenerateRequest) -> F32:
    async with aclosing(generate(request)) as deltas:
        async for delta in deltas:
            if delta.prompt is not None and delta.prompt.embedding is not None:
                return delta.prompt.embedding
    raise RuntimeError("the worker ended a stream without a result")
