"""From a job's deltas to what the client reads: one whole answer, or a stream of events.

It knows OpenAI's shapes and nothing of HTTP, Ray or the engine.
"""

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from app import errors, sse
from app.engine.types import FinishReason
from app.errors import ApiError
from app.generation import ChoiceDelta, Job
from app.openai_types import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    Usage,
)

Deltas = AsyncGenerator[list[ChoiceDelta], None]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an answer says about itself."""

    kind: Literal["chat", "completion"]
    response_id: str
    created: int
    """Unix seconds."""
    model: str
    include_usage: bool = False


@dataclass(slots=True)
class _Choice:
    text: list[str]
    finish_reason: FinishReason = "length"


async def whole(envelope: Envelope, job: Job, deltas: Deltas) -> ChatCompletion | Completion:
    """Waits for all choices. Raises what the deltas raise."""
    choices = [_Choice([]) for _ in job.requests]
    count = _TokenCount(job)
    async with aclosing(deltas):
        async for batch in deltas:
            count.add(batch)
            for delta in batch:
                choices[delta.index].text.append(delta.text)
                if delta.finish_reason is not None:
                    choices[delta.index].finish_reason = delta.finish_reason
    usage = count.usage()
    texts = [("".join(choice.text), choice.finish_reason) for choice in choices]
    if envelope.kind == "chat":
        answers = [
            ChatChoice(index=i, message=AssistantMessage(content=text), finish_reason=reason)
            for i, (text, reason) in enumerate(texts)
        ]
        return ChatCompletion(
            id=envelope.response_id,
            created=envelope.created,
            model=envelope.model,
            choices=answers,
            usage=usage,
        )
    completions = [CompletionChoice(index=i, text=text, finish_reason=reason) for i, (text, reason) in enumerate(texts)]
    return Completion(
        id=envelope.response_id,
        created=envelope.created,
        model=envelope.model,
        choices=completions,
        usage=usage,
    )


async def events(
    envelope: Envelope,
    job: Job,
    first: Sequence[ChoiceDelta],
    rest: Deltas,
    as_api_error: Callable[[Exception], ApiError],
) -> AsyncGenerator[bytes, None]:
    """Server-sent events, as many as there are at once in one piece. An error is the last event."""
    writer = sse.ChunkWriter(
        envelope.kind,
        envelope.response_id,
        envelope.created,
        envelope.model,
        include_usage=envelope.include_usage,
    )
    count = _TokenCount(job)
    count.add(first)
    async with aclosing(rest):
        yield b"".join(map(writer.start, range(len(job.requests)))) + _chunks(writer, first)
        try:
            async for batch in rest:
                count.add(batch)
                # Held back text, or the first bytes of a character: tokens came, but nothing to show.
                if chunks := _chunks(writer, batch):
                    yield chunks
        except Exception as error:
            yield sse.error_event(as_api_error(error))
            return
        usage = writer.usage(count.usage()) if envelope.include_usage else b""
        yield usage + sse.DONE


def as_api_error(error: Exception, request_id: str, retry_after_s: int) -> ApiError:
    """What the client is told. A bug of ours is logged by type and place: its message may quote a prompt."""
    known = errors.of_engine(error, retry_after_s)
    if known is not None:
        return known
    frames = "".join(traceback.format_tb(error.__traceback__))
    _logger.error("request %s failed: %s\n%s", request_id, type(error).__qualname__, frames)
    return errors.internal(request_id)


def _chunks(writer: sse.ChunkWriter, deltas: Sequence[ChoiceDelta]) -> bytes:
    return b"".join(writer.delta(delta.index, delta.text, delta.finish_reason) for delta in deltas)


class _TokenCount:
    """The tokens of all choices, as they come."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._completion_tokens = 0
        self._cached_tokens = [0] * len(job.requests)

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        for delta in deltas:
            self._completion_tokens += delta.tokens
            self._cached_tokens[delta.index] += delta.cached_tokens

    def usage(self) -> Usage:
        """A prompt counts once; of its choices the one that found least in the cache tells what was there before."""
        each = self._job.choices
        cached = [min(self._cached_tokens[i : i + each]) for i in range(0, len(self._cached_tokens), each)]
        return Usage.of(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=sum(cached),
        )
