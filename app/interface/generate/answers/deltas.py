"""Turns the engine's token deltas into deltas of a request's choices.

It knows neither Ray nor HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator

from app.interface.generate.answers.choice import Choice, ChoiceDelta, add_delta
from app.interface.generate.planning.job import Job
from app.interface.request import errors
from app.interface.request.observers import Observed
from app.interface.text.chat_model import ChatModel
from app.messages.failures import ConstraintError, EngineStoppedError
from app.messages.outputs import Answer, TokenDelta

Deltas = AsyncGenerator[list[ChoiceDelta], None]
"""Each item has the new deltas of all choices, each choice's in order; rarely several of one choice."""


async def choice_deltas(job: Job, model: ChatModel, sequences: Observed) -> Deltas:
    """Runs all requests of a job concurrently. A slow reader gets fewer and bigger deltas.

    Closing this generator, or an error in one choice, closes every choice's generator.
    """
    buffer = _DeltaBuffer()
    tasks = [
        asyncio.create_task(_run_request(index, job, model, sequences, buffer)) for index in range(len(job.requests))
    ]
    try:
        finished = 0
        while finished < job.outputs:
            deltas = await buffer.get()
            finished += sum(delta.finish_reason is not None for delta in deltas)
            yield deltas
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _DeltaBuffer:
    """Buffers the choices' deltas until the reader takes them; those of one choice are merged meanwhile."""

    def __init__(self) -> None:
        self._deltas: dict[int, list[ChoiceDelta]] = {}
        self._error: BaseException | None = None
        self._has_news = asyncio.Event()

    def put(self, delta: ChoiceDelta) -> None:
        add_delta(self._deltas.setdefault(delta.index, []), delta)
        self._has_news.set()

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._has_news.set()

    async def get(self) -> list[ChoiceDelta]:
        """Waits for deltas and returns them all. Raises an error once the deltas before it were returned."""
        await self._has_news.wait()
        deltas, self._deltas = [delta for each in self._deltas.values() for delta in each], {}
        if not deltas and self._error is not None:
            raise self._error
        if self._error is None:
            self._has_news.clear()
        return deltas


async def _run_request(index: int, job: Job, model: ChatModel, sequences: Observed, buffer: _DeltaBuffer) -> None:
    """Runs one request until it ends or a stop string ends it, and buffers its choices' deltas."""
    first = index * job.choices if job.beams else index
    choice = Choice(first, job, model)
    try:
        async with sequences.begun(job.requests[index]) as (deltas, saw):
            async for delta in deltas:
                if delta.progress is not None:
                    buffer.put(ChoiceDelta(first, "", 0, None, progress=delta.progress))
                    if not delta.has_output:
                        saw(delta)
                        continue
                new = choice.feed(delta)
                used = choice.used(delta, new)
                if delta.more:
                    used = used._replace(more=_feed_more(delta, first + 1, job, model, buffer))
                saw(used)
                for one in new:
                    buffer.put(one)
                if new[-1].finish_reason is not None:
                    return
            raise RuntimeError("the worker ended a stream without a finish reason")
    except asyncio.CancelledError:
        # Either the reader has gone, or the worker has cancelled the request: then the reader gets an error.
        buffer.fail(EngineStoppedError("The worker gave this request up. Try again."))
        raise
    except ConstraintError as error:
        field = job.grammar.field_of(error.definition) if job.grammar is not None else None
        buffer.fail(errors.invalid(error.message_for_client, field, "invalid_value"))
    except Exception as error:
        buffer.fail(error)


def _feed_more(delta: TokenDelta, first: int, job: Job, model: ChatModel, buffer: _DeltaBuffer) -> tuple[Answer, ...]:
    """Buffers the further answers of a beam search, choice `first` and on; returns what is used of them."""
    used: list[Answer] = []
    for number, answer in enumerate(delta.more, start=first):
        choice = Choice(number, job, model)
        whole = TokenDelta(answer.token_ids, answer.finish_reason, delta.cached_tokens)
        new = choice.feed(whole)
        used.append(answer._replace(token_ids=choice.used(whole, new).token_ids))
        for one in new:
            buffer.put(one)
    return tuple(used)
