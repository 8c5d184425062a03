"""Streams answers of `/v1` and times them. Knows nothing of the web page."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from openai import APIConnectionError, AsyncOpenAI, OpenAIError

from app.client import v1

_REDRAW_S = 0.1
_NO_RATE_S = 0.05
"""Below this duration an answer came at once, as beams do, and has no rate."""


@dataclass(slots=True)
class Answer:
    """An answer as far as it has been received."""

    texts: dict[int, str] = field(default_factory=dict)
    """Texts by choice index; beam search returns several."""
    thought: str = ""
    first_token_s: float | None = None
    last_token_s: float = 0.0
    tokens: int = 0
    """The number of chunks while streaming; of tokens once it has ended."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    failure: str = ""
    """One line; empty if there is none."""

    @property
    def text(self) -> str:
        """The answer's text; several choices are numbered."""
        if len(self.texts) == 1:
            return next(iter(self.texts.values()))
        return "\n\n".join(f"**{index + 1}.** {text}" for index, text in sorted(self.texts.items()))

    @property
    def tokens_per_s(self) -> float | None:
        """The rate after the first token; None if there are too few tokens."""
        if self.first_token_s is None or self.last_token_s - self.first_token_s < _NO_RATE_S:
            return None
        return (self.tokens - 1) / (self.last_token_s - self.first_token_s)


async def written(
    client: AsyncOpenAI, model: str, messages: Sequence[Any], fields: Mapping[str, Any]
) -> AsyncGenerator[Answer, None]:
    """Yields the same answer after each chunk. An error of the service becomes `Answer.failure`."""
    began_s = time.monotonic()
    answer = Answer()
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=list(messages),
            stream=True,
            stream_options={"include_usage": True},
            extra_body=dict(fields),
        )
        async with stream:
            async for chunk in stream:
                _add_chunk(answer, chunk, time.monotonic() - began_s)
                yield answer
    except OpenAIError as error:
        is_broken = isinstance(error, APIConnectionError) and answer.first_token_s is not None
        answer.failure = "The connection broke off before the answer's end." if is_broken else v1.reason(error)
        yield answer


def _add_chunk(answer: Answer, chunk: Any, now_s: float) -> None:
    for choice in chunk.choices:
        text, thought = choice.delta.content or "", getattr(choice.delta, "reasoning_content", None) or ""
        if text or thought:
            answer.first_token_s = now_s if answer.first_token_s is None else answer.first_token_s
            answer.last_token_s = now_s
            answer.tokens += 1
            answer.thought += thought
            answer.texts[choice.index] = answer.texts.get(choice.index, "") + text
        answer.finish_reason = choice.finish_reason or answer.finish_reason
    if chunk.usage is not None:
        answer.tokens, answer.prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
        answer.cached_tokens = getattr(chunk.usage.prompt_tokens_details, "cached_tokens", None) or 0


async def side_by_side(streams: Sequence[AsyncGenerator[Answer, None]]) -> AsyncGenerator[Sequence[Answer], None]:
    """Yields all answers as far as received, ten times a second and at their end. Closing it cancels them."""
    latest = [Answer() for _ in streams]

    async def follow(place: int) -> None:
        async with aclosing(streams[place]) as stream:
            async for answer in stream:
                latest[place] = answer

    tasks = [asyncio.create_task(follow(place)) for place in range(len(streams))]
    try:
        running = set(tasks)
        while running:
            _, running = await asyncio.wait(running, timeout=_REDRAW_S)
            yield latest
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
