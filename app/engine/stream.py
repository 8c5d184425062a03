"""The engine for asyncio: `async for delta in engine.stream(request)`.

The engine's thread wakes an event loop once per step, for all of its streams together. What a consumer has not taken
yet grows into one bigger delta; no timer ever holds a token back. Closing a stream, or cancelling the task that reads
it, aborts its request.

Knows nothing of text, HTTP or Ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from app.engine.batch import Event
from app.engine.engine import Engine
from app.engine.types import (
    Answer,
    EngineError,
    FinishReason,
    GenerateRequest,
    PromptResult,
    TokenConstraint,
    TokenDelta,
    TokenScores,
)


class AsyncEngine:
    """An engine's streams on one event loop: make it, and use it, on that loop."""

    def __init__(self, engine: Engine) -> None:
        """Uses `engine`, which others start and stop. Must be called with a running event loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._deliver = self._on_step  # one bound method, so that the engine sees one receiver

    async def stream(
        self, request: GenerateRequest, constraint: TokenConstraint | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Yields the request's deltas, the last with a finish reason. Raises EngineError, as `submit` does or later."""
        mailbox = _Mailbox()
        self._engine.submit(request, self._deliver, mailbox, constraint)
        ended = False
        try:
            while not ended:
                delta = await mailbox.take()
                ended = delta.finish_reason is not None
                yield delta
        except EngineError:
            ended = True
            raise
        finally:
            if not ended:
                self._engine.abort(request.request_id)

    def _on_step(self, events: Sequence[tuple[object, Event]]) -> None:
        """On the engine's thread. Raises RuntimeError if the loop is closed: the engine then aborts the requests."""
        self._loop.call_soon_threadsafe(_sort, events)


def _sort(events: Sequence[tuple[object, Event]]) -> None:
    """On the event loop."""
    for mailbox, event in events:
        assert isinstance(mailbox, _Mailbox)
        mailbox.put(event)


class _Mailbox:
    """What one stream has not taken yet. Used on the event loop only."""

    __slots__ = ("_cached_tokens", "_error", "_finish_reason", "_more", "_prompt", "_reader", "_scores", "_token_ids")

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._cached_tokens = 0
        self._scores: list[TokenScores] = []
        self._prompt: PromptResult | None = None
        self._finish_reason: FinishReason | None = None
        self._more: tuple[Answer, ...] = ()
        self._error: EngineError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        if isinstance(event, EngineError):
            self._error = event
        else:
            self._token_ids += event.token_ids
            self._finish_reason = event.finish_reason
            self._cached_tokens += event.cached_tokens
            self._more = event.more
            if event.scores is not None:
                self._scores.append(event.scores)
            if event.prompt is not None:
                self._prompt = event.prompt
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> TokenDelta:
        """All tokens since the last call, at least one or the end; raises the error once the tokens are taken."""
        while not self._token_ids and self._finish_reason is None:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        scores = TokenScores.joined(self._scores) if self._scores else None
        token_ids = tuple(self._token_ids)
        delta = TokenDelta(token_ids, self._finish_reason, self._cached_tokens, scores, self._prompt, self._more)
        self._token_ids.clear()
        self._scores.clear()
        self._cached_tokens = 0
        self._prompt = None
        return delta
