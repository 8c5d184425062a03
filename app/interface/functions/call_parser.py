"""Function calls in a model's text, found while it is written: Hermes', Llama 3's and Mistral's ways of saying them.

    <tool_call>{"name": "f", "arguments": {...}}</tool_call>      Hermes, Qwen, and our own convention
    <|python_tag|>{"name": "f", "parameters": {...}}; {...}       Llama 3; the tag may be missing
    [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]          Mistral; newer ones write f[ARGS]{...}

A call is announced as soon as its name is known, and its arguments are passed on as they come. What turns out to be no
call of a known function is text. Knows no token and no schema.
"""

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from app.interface.functions.json_call import JsonCall
from app.interface.text.call_marks import MARKERS, bare_head

_BETWEEN = re.compile(r"(?:(?!\[T)(?:\s|[,;\[\]]|</tool_call>))*")
_MISTRAL_NAME = re.compile(r"([a-zA-Z0-9_.-]{1,64})(?:\[CALL_ID\][a-zA-Z0-9]*)?(?:\[ARGS\])?\s*(?=\{)")
_MOST_HELD_CHARACTERS = 256
"""A name must come this soon."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A call's beginning, with id and name, or more of its arguments, or only that it is whole."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None
    done: bool = False
    """Whether nothing more comes of it; where a grammar makes the call, only the output's end says so."""


def new_call_id() -> str:
    """As long as the strictest template (Mistral's, nine letters) lets it be; unique within a conversation."""
    return uuid.uuid4().hex[:9]


class ForcedCall:
    """The whole output is one named function's arguments: a grammar saw to it."""

    def __init__(self, name: str) -> None:
        self._first: ToolCallDelta | None = ToolCallDelta(0, "", new_call_id(), name)
        self.calls = 0
        self.ended = False  # the grammar says when

    def feed(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Content, and what came of calls."""
        if not text:
            return "", []
        first, self._first = self._first, None
        self.calls = 1
        return "", [*([first] if first is not None else []), ToolCallDelta(0, text)]

    @property
    def held_characters(self) -> int:
        """Of the text so far, those at its end of which it is not known whether they are content."""
        return 0

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """What was held back."""
        return "", []


class CallParser:
    """Tells calls from text, however the text is cut."""

    def __init__(
        self,
        names: Collection[str],
        *,
        only_calls: bool = False,
        parallel: bool = True,
        bare: Literal["any", "strict", "none"] = "any",
    ) -> None:
        """only_calls: the output is a list of calls, without a marker: a grammar saw to it. It has no content.

        parallel: whether there may be several; otherwise nothing is read after the first.

        bare: which objects at the output's begin may be calls without a mark: any, those of `bare_head`, or none.
        """
        self._names = names
        self._parallel = parallel
        self._bare = bare
        self._is_bare = False  # the call that is read
        self.calls = 0
        self._held = ""
        self._raw = ""  # what was read since the marker, should it be no call
        self._call: JsonCall | None = None
        self._announced = False
        self._only_calls = self._in_calls = only_calls
        self._at_start = True

    def feed(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Content, and what came of calls."""
        self._held += text
        content: list[str] = []
        deltas: list[ToolCallDelta] = []
        while not self.ended and self._step(content, deltas):
            pass
        if self.ended:
            self._held = ""
        return "".join(content), deltas

    @property
    def ended(self) -> bool:
        """Whether nothing more can come: the only call is whole."""
        return not self._parallel and self.calls > 0 and self._call is None

    @property
    def held_characters(self) -> int:
        """Of the text so far, those at its end of which it is not known whether they are content."""
        read = len(self._raw) if not self._announced or self._call is None else 0
        return read + len(self._held)

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """What was held back: text, unless it was a call's."""
        unannounced = self._raw if self._call is not None and not self._announced else ""
        if self._call is None and self._in_calls:
            unannounced = self._raw if self.calls == 0 else ""
            self._held = "" if self.calls and self._is_between(self._held) else self._held
        left = unannounced + self._held
        self._held, self._raw, self._call = "", "", None
        return "" if self._only_calls else left, []

    def _step(self, content: list[str], deltas: list[ToolCallDelta]) -> bool:
        """One turn; False when more text is needed."""
        if self._call is not None:
            return self._read_call(content, deltas)
        return self._between_calls(content) if self._in_calls else self._look_for_marker(content)

    def _look_for_marker(self, content: list[str]) -> bool:
        if self._at_start:
            stripped = self._held.lstrip()
            if not stripped:
                return False
            self._at_start = False
            if stripped.startswith("{") and self._bare != "none":  # Llama 3 without its tag, and small models
                self._raw = self._held[: len(self._held) - len(stripped)]
                self._held = stripped
                self._begin_call()
                self._is_bare = True
                return True
        found = [(at, marker) for marker in MARKERS if (at := self._held.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            content.append(self._held[:at])
            self._held, self._raw = self._held[at + len(marker) :], marker
            self._in_calls = True
            return True
        keep = max((_overlap(self._held, marker) for marker in MARKERS), default=0)
        content.append(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _between_calls(self, content: list[str]) -> bool:
        match = _BETWEEN.match(self._held)
        assert match is not None
        rest = self._held[match.end() :]
        if self._is_between(rest):
            return False
        for marker in MARKERS:
            if rest.startswith(marker):
                if self.calls == 0:
                    content.append(self._raw + self._held[: match.end()])
                self._held, self._raw = rest[len(marker) :], marker
                return True
        if rest.startswith("{"):
            self._raw += self._held[: match.end()]
            self._held = rest
            self._begin_call()
            return True
        named = _MISTRAL_NAME.match(rest) if self._raw == "[TOOL_CALLS]" else None
        if named is not None:
            self._raw += rest[: named.end()]
            self._held = '{"name": "' + named[1] + '", "arguments": ' + rest[named.end() :]
            self._begin_call(ends_with_arguments=True)
            return True
        if self._raw == "[TOOL_CALLS]" and len(rest) < _MOST_HELD_CHARACTERS and "{" not in rest:
            return False
        if self.calls == 0:
            content.append(self._raw)
            rest = self._held
        self._held, self._raw, self._in_calls = rest, "", False
        return True

    def _is_between(self, text: str) -> bool:
        """Whether it is nothing but what stands between calls, perhaps cut off in a mark."""
        match = _BETWEEN.match(text)
        assert match is not None
        return any(mark.startswith(text[match.end() :]) for mark in ("</tool_call>", *MARKERS))

    def _begin_call(self, *, ends_with_arguments: bool = False) -> None:
        self._call, self._announced = JsonCall(ends_with_arguments=ends_with_arguments), False
        self._is_bare = False

    def _read_call(self, content: list[str], deltas: list[ToolCallDelta]) -> bool:
        call = self._call
        assert call is not None
        if not self._held:
            return False
        taken = call.feed(self._held)
        self._raw += self._held[:taken]
        self._held = self._held[taken:]
        known = call.name is not None and call.name in self._names
        if known and not self._announced and self._is_bare and self._bare == "strict":
            # The name has just come: with its quote ends what was read.
            known = re.fullmatch(bare_head(re.escape(call.name or "")), self._raw) is not None
        if not self._announced and (
            not call.is_call or (call.name is not None and not known) or (call.done and not known)
        ):
            content.append(self._raw)
            self._raw, self._call, self._in_calls = "", None, False
            return True
        if known and call.is_call and not self._announced:
            self._announced = True
            deltas.append(ToolCallDelta(self.calls, "", new_call_id(), call.name))
            self.calls += 1
        arguments = call.take_arguments() if self._announced else ""
        if self._announced and (arguments or call.done):
            deltas.append(ToolCallDelta(self.calls - 1, arguments, done=call.done))
        if call.done:
            self._call, self._raw, self._in_calls = None, "", True
        return call.done or bool(self._held)


def _overlap(text: str, marker: str) -> int:
    """Characters at the end of `text` that could begin `marker`."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)
