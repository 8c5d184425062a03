"""From a job's deltas to what the client reads: one whole answer, or a stream of events.

It knows OpenAI's shapes and nothing of HTTP, Ray or the engine.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from app.interface.answers.choice import ChoiceDelta
from app.interface.answers.chunks import DONE, ChunkWriter, error_event
from app.interface.errors import ApiError
from app.interface.planning.job import Job
from app.interface.wire.chat import AssistantMessage, ChatChoice, ChatCompletion
from app.interface.wire.completions import Completion, CompletionChoice, FinishReason, Usage

Deltas = AsyncGenerator[list[ChoiceDelta], None]


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
    text: list[str] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    logprob: float = 0.0
    tokens: int = 0
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def add(self, delta: ChoiceDelta) -> None:
        self.text.append(delta.text)
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.logprob += delta.logprob
        self.tokens += delta.tokens
        for name, entries in (delta.logprobs or {}).items():
            self.logprobs.setdefault(name, []).extend(entries)
        for call in delta.calls:
            if call.call_id is not None and call.name is not None:
                self.calls.append((call.call_id, call.name, []))
            self.calls[call.index][2].append(call.arguments)

    @property
    def mean_logprob(self) -> float:
        return self.logprob / self.tokens if self.tokens else float("-inf")

    def chat(self, index: int) -> ChatChoice:
        calls = [dict(call_entry(call_id, name, "".join(parts))) for call_id, name, parts in self.calls]
        text = "".join(self.text)
        message = AssistantMessage(content=None if calls and not text.strip() else text, tool_calls=calls or None)
        logprobs = {**self.logprobs, "refusal": None} if self.logprobs else None
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=self.finish_reason)

    def completion(self, index: int) -> CompletionChoice:
        return CompletionChoice(
            index=index, text="".join(self.text), logprobs=self.logprobs or None, finish_reason=self.finish_reason
        )


async def whole(envelope: Envelope, job: Job, deltas: Deltas) -> ChatCompletion | Completion:
    """Waits for all choices. Raises what the deltas raise."""
    choices = [_Choice() for _ in range(job.outputs)]
    count = TokenCount(job)
    async with aclosing(deltas):
        async for batch in deltas:
            count.add(batch)
            for delta in batch:
                choices[delta.index].add(delta)
    head: dict[str, Any] = {"id": envelope.response_id, "created": envelope.created, "model": envelope.model}
    head["usage"] = count.usage()
    best = _best(choices, job)
    if envelope.kind == "chat":
        return ChatCompletion(choices=[choice.chat(i) for i, choice in enumerate(best)], **head)
    return Completion(choices=[choice.completion(i) for i, choice in enumerate(best)], **head)


def _best(choices: Sequence[_Choice], job: Job) -> Sequence[_Choice]:
    """Of each prompt's choices those that are the answer, the likeliest first (by token, as OpenAI has it)."""
    if job.answers is None:
        return choices
    best: list[_Choice] = []
    for begin in range(0, len(choices), job.choices):
        ranked = sorted(choices[begin : begin + job.choices], key=lambda choice: -choice.mean_logprob)
        best += ranked[: job.answers]
    return best


async def events(
    envelope: Envelope,
    job: Job,
    first: Sequence[ChoiceDelta],
    rest: Deltas,
    as_api_error: Callable[[Exception], ApiError],
) -> AsyncGenerator[bytes, None]:
    """Server-sent events, as many as there are at once in one piece. An error is the last event."""
    writer = ChunkWriter(
        envelope.kind,
        envelope.response_id,
        envelope.created,
        envelope.model,
        include_usage=envelope.include_usage,
    )
    count = TokenCount(job)
    count.add(first)
    async with aclosing(rest):
        yield b"".join(map(writer.start, range(job.outputs))) + _chunks(writer, first)
        try:
            async for batch in rest:
                count.add(batch)
                # Held back text, or the first bytes of a character: tokens came, but nothing to show.
                if chunks := _chunks(writer, batch):
                    yield chunks
        except Exception as error:
            yield error_event(as_api_error(error))
            return
        usage = writer.usage(count.usage()) if envelope.include_usage else b""
        yield usage + DONE


def _chunks(writer: ChunkWriter, deltas: Sequence[ChoiceDelta]) -> bytes:
    return b"".join(
        writer.delta(delta.index, delta.text, delta.finish_reason, delta.logprobs, delta.calls) for delta in deltas
    )


class TokenCount:
    """The tokens of all choices, as they come."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._completion_tokens = 0
        self._cached_tokens = [0] * job.outputs

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        """What has come since the last time."""
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


def call_entry(call_id: str, name: str, arguments: str) -> Mapping[str, Any]:
    """An entry of an answer's `tool_calls`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
