"""An answer of `/v1/messages`, whole or as events.

A thought, a text and each call are a block each, one after another in the order of the output. White space between two
blocks is no text. It knows nothing of HTTP, templates, tokens or the engine.
"""

from collections.abc import Sequence
from typing import Any, Final

from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.chunks import event_json
from app.interface.generate.answers.usage import TokenCount
from app.interface.generate.planning.job import Job
from app.interface.request.anthropic_errors import anthropic_error
from app.interface.request.errors import ApiError
from app.interface.text.earlier_calls import read_arguments
from app.interface.thinking.signatures import signature_of
from app.interface.wire.messages import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    AnthropicMessage,
    MessagesRequest,
    MessagesUsage,
    StopReason,
    ThinkingTokens,
)

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageBody:
    """Collects an answer."""

    def __init__(self, request: MessagesRequest, head: AnswerHead, job: Job) -> None:
        self._builder = _MessageBuilder(request, head, job, streams=False)

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._builder.add(deltas)

    def body(self) -> bytes:
        """Returns an `AnthropicMessage` as JSON."""
        return self._builder.message.model_dump_json().encode()


class MessageEvents:
    """Writes an answer as events: an `EventWriter`."""

    def __init__(self, request: MessagesRequest, head: AnswerHead, job: Job) -> None:
        self._builder = _MessageBuilder(request, head, job, streams=True)

    def begin(self) -> bytes:
        """Returns nothing: the first event says how much of the prompt was cached, which the first delta tells."""
        return b""

    def add(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        self._builder.add(deltas)
        return self._builder.pop_events()

    def end(self) -> bytes:
        """Returns `message_delta`, with why the answer ended, and `message_stop`."""
        self._builder.end()
        return self._builder.pop_events()

    def fail(self, error: ApiError) -> bytes:
        return message_error(error)


def message_error(error: ApiError) -> bytes:
    """Returns the event of an error after the HTTP status was sent."""
    return b"event: error\ndata: %b\n\n" % event_json(anthropic_error(error))


class _MessageBuilder:
    """Builds an answer from one choice's deltas, and its events for a stream."""

    def __init__(self, request: MessagesRequest, head: AnswerHead, job: Job, *, streams: bool) -> None:
        """streams: whether to write events."""
        self._count = TokenCount(job)
        self._head = head
        self._shows_thoughts = request.shows_thoughts
        self._streams = streams
        self._events: list[bytes] = []
        self._begun: AnthropicMessage | None = None
        self._open: AnswerBlock | None = None  # the last block, while more of it may follow
        self._pieces: list[str] = []  # of the open block
        self._held = ""  # white space, which is text only if more text follows

    @property
    def message(self) -> AnthropicMessage:
        """The answer so far."""
        if self._begun is None:
            self._begun = AnthropicMessage(id=self._head.response_id, model=self._head.model, usage=self._usage())
            self._begun.context = self._count.context()
        return self._begun

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._count.add(deltas)
        if self._begun is None:
            self._event("message_start", message=self.message.model_dump())
            self._events += [PING] if self._streams else []
        for delta in deltas:
            self._add_thought(delta.thought)
            self._add_text(delta.text)
            for call in delta.calls:
                if call.call_id is not None and call.name is not None:
                    self._begin(AnswerToolUse(id=call.call_id, name=call.name))
                self._add_arguments(call.arguments)
                if call.done:
                    self._end_block()
            if delta.finish_reason is not None:
                self._end(delta)

    def end(self) -> None:
        """Writes the last events."""
        message = self.message
        usage = message.usage.model_dump(exclude={"service_tier"})
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        context = {} if message.context is None else {"context": message.context.model_dump()}
        self._event("message_delta", delta=delta, usage=usage, **context)
        self._event("message_stop")

    def pop_events(self) -> bytes:
        """Returns the events since the last call."""
        events = b"".join(self._events)
        self._events.clear()
        return events

    def _add_thought(self, text: str) -> None:
        if not isinstance(self._open, AnswerThinking):
            text = text.lstrip()  # the gap after an earlier thought
            if not text:
                return
            self._begin(AnswerThinking())
        self._pieces.append(text)
        if text and self._shows_thoughts:
            self._delta("thinking_delta", thinking=text)

    def _add_text(self, text: str) -> None:
        if not isinstance(self._open, AnswerText):
            self._held += text
            if not self._held.strip():
                return
            text, self._held = self._held, ""
            if any(isinstance(block, AnswerText) for block in self.message.content):
                text = text.lstrip()
            self._begin(AnswerText())
        if text:
            self._pieces.append(text)
            self._delta("text_delta", text=text)

    def _add_arguments(self, text: str) -> None:
        if text and isinstance(self._open, AnswerToolUse):
            self._pieces.append(text)
            self._delta("input_json_delta", partial_json=text)

    def _begin(self, block: AnswerBlock) -> None:
        self._end_block()
        self._held = ""
        self.message.content.append(block)
        self._open = block
        self._block_event("start", content_block=block.model_dump())

    def _end_block(self) -> None:
        block, text = self._open, "".join(self._pieces)
        if block is None:
            return
        self._pieces.clear()
        match block:
            case AnswerText():
                block.text = text
            case AnswerThinking():
                block.thinking = text if self._shows_thoughts else ""
                block.signature = signature_of(text, is_shown=self._shows_thoughts)
                self._delta("signature_delta", signature=block.signature)
            case AnswerToolUse():
                block.input = read_arguments(text) if text.strip() else {}
        self._block_event("stop")
        self._open = None

    def _end(self, delta: ChoiceDelta) -> None:
        if not self.message.content:  # the output is empty, or white space
            held = self._held
            self._begin(AnswerText())
            self._pieces.append(held)
            if held:
                self._delta("text_delta", text=held)
        self._end_block()
        self.message.usage = self._usage()
        self.message.context = self._count.context()
        self.message.stop_reason = self._stop_reason(delta)
        self.message.stop_sequence = delta.stop if self.message.stop_reason == "stop_sequence" else None

    def _stop_reason(self, last: ChoiceDelta) -> StopReason:
        if last.finish_reason == "length":
            return "model_context_window_exceeded" if self._count.is_full else "max_tokens"
        if last.finish_reason == "tool_calls":
            return "tool_use"
        return "end_turn" if last.stop is None else "stop_sequence"

    def _usage(self) -> MessagesUsage:
        usage = self._count.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessagesUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
            output_tokens_details=ThinkingTokens(thinking_tokens=usage.completion_tokens_details.reasoning_tokens),
        )

    def _delta(self, kind: str, **fields: Any) -> None:
        self._block_event("delta", delta={"type": kind, **fields})

    def _block_event(self, kind: str, **fields: Any) -> None:
        self._event(f"content_block_{kind}", index=len(self.message.content) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> None:
        if self._streams:
            self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), event_json({"type": kind, **fields})))
