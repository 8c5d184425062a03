"""Chunks of streamed chat completions and completions as server-sent events, written as bytes."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from app.interface.errors import ApiError
from app.interface.functions.call_parser import ToolCallDelta
from app.interface.wire.completions import Usage

DONE = b"data: [DONE]\n\n"

# Line ends to Unicode and to no event stream: a client that splits decoded text at every line end (httpx' `iter_lines`,
# for one) would cut an event in two at them. JSON may hold them as they are, and as escapes.
_LINE_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029"]


def event_json(value: Any) -> bytes:
    """`value` as JSON that is one line to every client, to those too that know more line ends than the standard."""
    return _one_line(orjson.dumps(value))


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    return data


class ChunkWriter:
    """Writes the chunks of one stream."""

    def __init__(
        self,
        kind: Literal["chat", "completion"],
        response_id: str,
        created: int,
        model: str,
        *,
        include_usage: bool,
    ) -> None:
        self._is_chat = kind == "chat"
        head = {
            "id": response_id,
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._head = b"data: " + event_json(head)[:-1] + b',"choices":['
        # With include_usage every chunk has the field, null but in the last.
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text = b'"delta":{"content":%b}' if self._is_chat else b'"text":%b'
        self._empty = b'"delta":{}' if self._is_chat else b'"text":""'

    def start(self, index: int) -> bytes:
        """What opens a choice: in chat its role, in completions nothing."""
        if not self._is_chat:
            return b""
        return self._chunk(index, b'"delta":{"role":"assistant","content":""}', None)

    def delta(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        logprobs: Mapping[str, Any] | None = None,
        calls: Sequence[ToolCallDelta] = (),
    ) -> bytes:
        """New text, scores and calls, and the end of the choice if it has one: none or several chunks."""
        chunks = b""
        if text or (logprobs is not None and any(logprobs.values())):
            chunks = self._chunk(index, self._text % event_json(text), None, logprobs)
        for call in calls:
            if call.name is None and not call.arguments:
                continue  # its end, of which chunks don't tell
            chunks += self._chunk(index, b'"delta":{"tool_calls":[%b]}' % event_json(_call_delta(call)), None)
        if finish_reason is not None:
            chunks += self._chunk(index, self._empty, finish_reason)
        return chunks

    def usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream that was asked for usage: no choices, and the numbers."""
        return self._head + b'],"usage":' + event_json(usage.model_dump()) + b"}\n\n"

    def _chunk(
        self, index: int, content: bytes, finish_reason: str | None, logprobs: Mapping[str, Any] | None = None
    ) -> bytes:
        reason = b"null" if finish_reason is None else b'"%b"' % finish_reason.encode()
        return b'%b{"index":%d,%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            index,
            content,
            b"null" if logprobs is None else event_json(logprobs),
            reason,
            self._tail,
        )


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    function = {"arguments": call.arguments}
    if call.name is None:
        return {"index": call.index, "function": function}
    return {"index": call.index, "id": call.call_id, "type": "function", "function": {"name": call.name, **function}}


def error_event(error: ApiError) -> bytes:
    """An error after the stream has begun, when the status can't say it any more."""
    return b"data: " + _one_line(error.body()) + b"\n\n"
