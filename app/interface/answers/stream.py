"""From the engine's token deltas to the text of a request's choices.

The only thing below that it uses is `generate`, an async generator function: it knows neither Ray nor HTTP,
and a test gives it a fake worker.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.interface import errors
from app.interface.answers.choice import Choice, ChoiceDelta, merged
from app.interface.planning.job import Job
from app.interface.text.chat_model import ChatModel
from app.messages.failures import ConstraintError, EngineStoppedError
from app.messages.outputs import Generate, TokenDelta


async def stream(job: Job, model: ChatModel, generate: Generate) -> AsyncGenerator[list[ChoiceDelta], None]:
    """Runs all choices at once and yields what has come since the last time, one delta per choice at most.

    A slow reader gets fewer, bigger deltas. Closing it, or an error in one choice, closes every choice's
    generator.
    """
    inbox = _Inbox()
    runs = [asyncio.create_task(_run(index, job, model, generate, inbox)) for index in range(len(job.requests))]
    try:
        finished = 0
        while finished < job.outputs:
            deltas = await inbox.take()
            finished += sum(delta.finish_reason is not None for delta in deltas)
            yield deltas
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


class _Inbox:
    """Where the choices leave their deltas; those of one choice become one until they are taken."""

    def __init__(self) -> None:
        self._deltas: dict[int, ChoiceDelta] = {}
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, delta: ChoiceDelta) -> None:
        earlier = self._deltas.get(delta.index)
        self._deltas[delta.index] = delta if earlier is None else merged(earlier, delta)
        self._news.set()

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._news.set()

    async def take(self) -> list[ChoiceDelta]:
        """Everything there is, as soon as there is something; an error comes after what came before it."""
        await self._news.wait()
        deltas, self._deltas = list(self._deltas.values()), {}
        if not deltas and self._error is not None:
            raise self._error
        if self._error is None:
            self._news.clear()
        return deltas


async def _run(index: int, job: Job, model: ChatModel, generate: Generate, inbox: _Inbox) -> None:
    """Moves the text of one request's choices to the inbox until it ends, by itself or by a stop string."""
    first = index * job.choices if job.beams else index
    choice = Choice(first, job, model)
    try:
        async with aclosing(generate(job.requests[index])) as deltas:
            async for delta in deltas:
                new = choice.feed(delta)
                for number, answer in enumerate(delta.more, start=first + 1):
                    also = TokenDelta(answer.token_ids, answer.finish_reason, delta.cached_tokens)
                    inbox.put(Choice(number, job, model).feed(also))
                inbox.put(new)
                if new.finish_reason is not None:
                    return
        raise RuntimeError("the worker ended a stream without a finish reason")
    except asyncio.CancelledError:
        # By the reader, who is gone; or from below, where nobody else would tell the reader.
        inbox.fail(EngineStoppedError("The worker gave this request up. Try again."))
        raise
    except ConstraintError as error:
        field = job.grammar.field_of(error.definition) if job.grammar is not None else None
        inbox.fail(errors.invalid(error.told, field, "invalid_value"))
    except Exception as error:
        inbox.fail(error)
