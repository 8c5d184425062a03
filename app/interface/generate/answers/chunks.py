"""Writes the chunks of streamed chat completions and completions, as bytes of server-sent events."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.interface.functions.call_parser import ToolCallDelta
from app.interface.functions.custom_input import CustomInput
from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.usage import TokenCount
from app.interface.generate.planning.job import Job
from app.interface.request.errors import ApiError
from app.interface.wire.generation import ContextUse, PromptProgressObject, ReasoningCut, Usage
from app.messages.outputs import PromptProgress

DONE = b"data: [DONE]\n\n"

# Unicode has line ends that event streams do not have. A client that splits decoded text at every line end (httpx's
# `iter_lines`, for one) would cut an event in two there. In JSON they may be written literally or as escapes.
_LINE_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029"]


def event_json(value: Any) -> bytes:
    """Returns `value` as JSON in which no client finds a line end."""
    return _one_line(orjson.dumps(value))


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    return data


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The differences between the chunks of chat and completions; all but `object` are parts of a choice's JSON."""

    object: str
    opening: bytes
    """The choice's first chunk; empty if there is none."""
    text: bytes
    """The chunk of new text, with `%b` for it."""
    empty: bytes
    """The chunk without new text."""


class ChunkWriter:
    """Writes the chunks of one stream."""

    def __init__(self, shape: ChunkShape, head: AnswerHead, *, include_usage: bool) -> None:
        fields = {
            "id": head.response_id,
            "object": shape.object,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": None,
        }
        self._shape = shape
        self._head = b"data: " + event_json(fields)[:-1] + b',"choices":['
        # With include_usage every chunk has the field, and it is null in all but the last, unless it is set.
        self._end = b'],"usage":null' if include_usage else b"]"
        self._tail = self._end + b"}\n\n"

    def set_usage(self, usage: Usage) -> None:
        """Sets what the next chunks have as their usage."""
        self._end = b'],"usage":%b' % event_json(usage.model_dump())
        self._tail = self._end + b"}\n\n"

    def start(self, index: int, prompt: Sequence[int] | None = None) -> bytes:
        """Returns the chunk that begins a choice: its role in chat, nothing in completions.

        prompt: its tokens, if the chunk shows them.
        """
        if not self._shape.opening:
            return b""
        tail = None if prompt is None else b'%b,"prompt_token_ids":%b}\n\n' % (self._end, event_json(prompt))
        return self._chunk(index, self._shape.opening, None, tail=tail)

    def delta(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        logprobs: Mapping[str, Any] | None = None,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
        cut: ReasoningCut | None = None,
        context: ContextUse | None = None,
        tokens: Mapping[str, Sequence[int]] | None = None,
    ) -> bytes:
        """Returns the chunks of a thought, what cut it, text, scores and calls, and of the choice's end; maybe none.

        context: for the chunk of the end. tokens: the first chunk has them; they make one alone.
        """
        shown = b"" if not tokens else b",%b" % event_json(tokens)[1:-1]
        chunks = b""
        if thought:
            chunks += self._chunk(index, b'"delta":{"reasoning_content":%b}%b' % (event_json(thought), shown), None)
            shown = b""
        if cut is not None:
            chunks += self._chunk(index, b'"delta":{"reasoning_cut":"%b"}%b' % (cut.encode(), shown), None)
            shown = b""
        if text or (logprobs is not None and any(logprobs.values())):
            chunks += self._chunk(index, self._shape.text % event_json(text) + shown, None, logprobs)
            shown = b""
        for call in calls:
            chunks += self._chunk(index, b'"delta":{"tool_calls":[%b]}%b' % (event_json(call), shown), None)
            shown = b""
        if finish_reason is not None:
            tail = b"%b%b}\n\n" % (self._end, _context(context))
            chunks += self._chunk(index, self._shape.empty + shown, finish_reason, tail=tail)
            shown = b""
        return chunks + self._chunk(index, self._shape.empty + shown, None) if shown else chunks

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """Returns a chunk with the prompt's progress and without text, as in llama-server."""
        tail = b'%b,"prompt_progress":%b}\n\n' % (self._end, event_json(wire_progress(progress)))
        return self._chunk(index, self._shape.empty, None, tail=tail)

    def usage(self, usage: Usage, context: ContextUse | None = None) -> bytes:
        """Returns the last chunk of a stream with include_usage: the usage, and no choices."""
        return b'%b],"usage":%b%b}\n\n' % (self._head, event_json(usage.model_dump()), _context(context))

    def _chunk(
        self,
        index: int,
        content: bytes,
        finish_reason: str | None,
        logprobs: Mapping[str, Any] | None = None,
        tail: bytes | None = None,
    ) -> bytes:
        reason = b"null" if finish_reason is None else b'"%b"' % finish_reason.encode()
        return b'%b{"index":%d,%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            index,
            content,
            b"null" if logprobs is None else event_json(logprobs),
            reason,
            self._tail if tail is None else tail,
        )


class ChunkEvents:
    """Writes a chat completion or a completion as events: an `EventWriter`."""

    def __init__(
        self,
        shape: ChunkShape,
        head: AnswerHead,
        job: Job,
        *,
        usage: bool,
        each_usage: bool = False,
        custom: Collection[str] = (),
    ) -> None:
        """usage: whether the stream ends with its usage. each_usage: whether every chunk has the usage so far.

        custom: the names of custom tools, whose calls have an input in place of arguments.
        """
        self._job = job
        self._writer = ChunkWriter(shape, head, include_usage=usage)
        self._each_usage = each_usage
        self._began = set[int]()  # choices whose prompt was shown
        self._shows_prompt_first = bool(shape.opening)
        self._custom = custom
        self._inputs: dict[tuple[int, int], CustomInput] = {}  # of open calls, by choice and number
        self._outputs = job.outputs
        self._count = TokenCount(job)
        self._include_usage = usage

    def begin(self) -> bytes:
        if self._each_usage:
            self._writer.set_usage(self._count.usage())
        prompt = self._job.prompt_of(0) if self._job.shows_tokens else None
        return b"".join(self._writer.start(i, None if i else prompt) for i in range(self._outputs))

    def add(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        if not self._each_usage:
            self._count.add(deltas)
            return b"".join(map(self._chunks, deltas))
        chunks = b""
        for delta in deltas:
            self._count.add([delta])
            self._writer.set_usage(self._count.usage())
            chunks += self._chunks(delta)
        return chunks

    def end(self) -> bytes:
        """Returns the usage, if the client asked for it, and OpenAI's end of a stream."""
        if not self._include_usage:
            return DONE
        return self._writer.usage(self._count.usage(), self._count.context()) + DONE

    def fail(self, error: ApiError) -> bytes:
        return error_event(error)

    def _tokens(self, delta: ChoiceDelta) -> dict[str, Sequence[int]]:
        """Returns the tokens that chunks show."""
        if not delta.tokens:
            return {}
        shown: dict[str, Sequence[int]] = {"token_ids": delta.token_ids}
        if not self._shows_prompt_first and delta.index not in self._began:
            self._began.add(delta.index)
            shown["prompt_token_ids"] = self._job.prompt_of(delta.index)
        return shown

    def _calls(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """Returns the delta's calls as chunks have them; the end of a call is mostly nothing."""
        if not (delta.calls or self._inputs):
            return []
        calls: list[dict[str, Any]] = []
        for call in delta.calls:
            place = (delta.index, call.index)
            if call.name in self._custom:
                self._inputs[place] = CustomInput()
            custom = self._inputs.get(place)
            text = call.arguments if custom is None else custom.feed(call.arguments)
            if custom is not None and call.done:
                text += self._inputs.pop(place).finish()
            if call.name is not None or text:
                calls.append(_call_delta(call, text, is_custom=custom is not None))
        if delta.finish_reason is not None:
            cut = [one for one in self._inputs if one[0] == delta.index]  # by the limit
            rest = {place[1]: self._inputs.pop(place).finish() for place in cut}
            calls += [{"index": number, "custom": {"input": text}} for number, text in rest.items() if text]
        return calls

    def _chunks(self, delta: ChoiceDelta) -> bytes:
        context = None if self._include_usage or delta.finish_reason is None else self._count.context()
        chunks = self._writer.delta(
            delta.index,
            delta.text,
            delta.finish_reason,
            delta.logprobs,
            self._calls(delta),
            delta.thought,
            delta.cut,
            context,
            self._tokens(delta) if self._job.shows_tokens else None,
        )
        if delta.progress is None:
            return chunks
        return self._writer.progress(delta.index, delta.progress) + chunks


def wire_progress(progress: PromptProgress) -> dict[str, Any]:
    """Converts the progress of a prompt to a `PromptProgressObject`."""
    return PromptProgressObject(
        total=progress.total_tokens,
        cache=progress.cached_tokens,
        processed=progress.read_tokens,
        time_ms=round(progress.elapsed_s * 1000),
        queued_ahead=progress.queued_ahead,
    ).model_dump()


def _context(context: ContextUse | None) -> bytes:
    """Returns the field, after others; empty if there is none."""
    return b"" if context is None else b',"context":' + event_json(context.model_dump())


def _call_delta(call: ToolCallDelta, text: str, *, is_custom: bool) -> dict[str, Any]:
    """text: of the arguments, or of a custom tool's input."""
    kind, part = ("custom", {"input": text}) if is_custom else ("function", {"arguments": text})
    if call.name is None:
        return {"index": call.index, kind: part}
    return {"index": call.index, "id": call.call_id, "type": kind, kind: {"name": call.name, **part}}


def error_event(error: ApiError) -> bytes:
    """Returns the event of an error after the HTTP status was sent."""
    return b"data: " + _one_line(error.body()) + b"\n\n"
