"""Parses function calls incrementally in a model's text, in any dialect (`dialects`).

A call is reported as soon as its name is known, and its arguments are passed on as they arrive. What turns out to be no
call of a known function is text. It knows no token and no schema.
"""

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.interface.functions.dialect import CallReader, Dialect
from app.interface.functions.dialects import BARE, DIALECTS
from app.interface.functions.json_call import JsonCall
from app.interface.thinking.possible_start import possible_start


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The beginning of a call, with id and name; or more of its arguments; or its end."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None
    done: bool = False
    """Whether the call is complete; if a grammar makes the whole output a call, only the output's end tells."""


def new_call_id() -> str:
    """Returns an id unique within a conversation; nine letters, the only length that Mistral's template allows."""
    return uuid.uuid4().hex[:9]


class ForcedCall:
    """Parses an output that a grammar restricts to one named function's arguments."""

    def __init__(self, name: str) -> None:
        self._first: ToolCallDelta | None = ToolCallDelta(0, "", new_call_id(), name)
        self.calls = 0
        self.ended = False  # the grammar ends the output

    def feed(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Returns the content in the text, and the calls' deltas."""
        if not text:
            return "", []
        first, self._first = self._first, None
        self.calls = 1
        return "", [*([first] if first is not None else []), ToolCallDelta(0, text)]

    @property
    def held_characters(self) -> int:
        """Characters at the end of the text so far that may or may not be content."""
        return 0

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """Returns what was held back."""
        return "", []


class _Marks:
    """The marks of some dialects, and the separators between calls."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self.dialects = dialects
        self.marks = tuple(dict.fromkeys(dialect.mark for dialect in dialects))
        ends = dict.fromkeys(dialect.end_mark for dialect in dialects if dialect.end_mark is not None)
        self._begins_or_ends = (*self.marks, *ends)
        # A separator may also be a mark's first character.
        starts = "|".join(re.escape(mark[:2]) for mark in self.marks)
        self._between = re.compile(rf"(?:{'|'.join(map(re.escape, ends))}|(?!{starts})[\s,;\[\]])*")

    def between(self, text: str) -> int:
        """Returns how many of the first characters are separators."""
        match = self._between.match(text)
        assert match is not None
        return match.end()

    def may_be_between(self, text: str) -> bool:
        """Whether the text is only separators; it may end within a mark."""
        rest = text[self.between(text) :]
        return any(mark.startswith(rest) for mark in self._begins_or_ends)

    def first(self, text: str) -> tuple[int, str] | None:
        """Returns the position of the first mark, and the mark."""
        return min(((at, mark) for mark in self.marks if (at := text.find(mark)) >= 0), default=None)

    def of(self, mark: str) -> Iterator[Dialect]:
        """Yields the dialects that have this mark."""
        return (dialect for dialect in self.dialects if dialect.mark == mark)


_ALL = _Marks(DIALECTS)


class CallParser:
    """Separates calls from content, however the text is split."""

    def __init__(
        self,
        names: Collection[str],
        *,
        only_calls: bool = False,
        parallel: bool = True,
        bare: Literal["any", "strict", "none"] = "any",
        schemas: Mapping[str, Any] | None = None,
        dialects: Sequence[Dialect] = DIALECTS,
    ) -> None:
        """only_calls: a grammar makes the output a list of calls, without a mark and without content.

        parallel: whether there may be several calls; otherwise nothing is read after the first.
        bare: which objects at the output's beginning may be calls without a mark: any, those of `BARE.head`, or none.
        schemas: of the functions' arguments, by name, for dialects in which values are plain text.
        """
        self._names = names
        self._schemas = schemas or {}
        self._marks = _ALL if dialects is DIALECTS else _Marks(dialects)
        self._parallel = parallel
        self._bare = bare
        self._is_bare = False  # whether the current call has no mark
        self.calls = 0
        self._held = ""
        self._mark: str | None = None  # the last one
        self._raw = ""  # the text since the last mark, which is content if no call follows
        self._call: CallReader | None = None
        self._announced = False
        self._only_calls = self._in_calls = only_calls
        self._at_start = True

    def feed(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Returns the content in the text, and the calls' deltas."""
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
        """Whether the only call is complete, so that nothing more is read."""
        return not self._parallel and self.calls > 0 and self._call is None

    @property
    def held_characters(self) -> int:
        """Characters at the end of the text so far that may or may not be content."""
        read = len(self._raw) if not self._announced or self._call is None else 0
        return read + len(self._held)

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """Returns what was held back, unless it belongs to a call."""
        call, deltas = self._call, list[ToolCallDelta]()
        if call is not None and self._announced and (rest := call.finish()):
            deltas.append(ToolCallDelta(self.calls - 1, rest))
        unannounced = self._raw if call is not None and not self._announced else ""
        if call is None and self._in_calls:
            unannounced = self._raw if self.calls == 0 else ""
            self._held = "" if self.calls and self._marks.may_be_between(self._held) else self._held
        left = unannounced + self._held
        self._held, self._raw, self._call = "", "", None
        return "" if self._only_calls else left, deltas

    def _step(self, content: list[str], deltas: list[ToolCallDelta]) -> bool:
        """Reads one piece; returns False if more text is needed."""
        if self._call is not None:
            return self._read_call(content, deltas)
        return self._between_calls(content) if self._in_calls else self._look_for_mark(content)

    def _look_for_mark(self, content: list[str]) -> bool:
        if self._at_start:
            stripped = self._held.lstrip()
            if not stripped:
                return False
            self._at_start = False
            if self._bare != "none" and BARE.begins(stripped):
                self._raw = self._held[: len(self._held) - len(stripped)]
                self._held = stripped
                self._begin_call(JsonCall())
                self._is_bare = True
                return True
        found = self._marks.first(self._held)
        if found is not None:
            at, mark = found
            content.append(self._held[:at])
            self._begin_calls(mark, self._held[at:])
            return True
        keep = min(possible_start(self._held, mark) for mark in self._marks.marks)
        content.append(self._held[:keep])
        self._held = self._held[keep:]
        return False

    def _between_calls(self, content: list[str]) -> bool:
        length = self._marks.between(self._held)
        rest = self._held[length:]
        if self._marks.may_be_between(rest):
            return False
        is_first = self._raw == self._mark  # nothing but the mark so far
        dialects = tuple(one for one in self._marks.of(self._mark or "") if is_first or (one.lists and not self._raw))
        if dialects:
            for dialect in dialects:
                start = dialect.match_call(rest, self._schemas)
                if start is not None:
                    self._raw += self._held[: length + start.length]
                    self._held = rest[start.length :]
                    self._begin_call(start.reader)
                    return True
            if any(dialect.may_match_call(rest) for dialect in dialects):
                return False
        for mark in self._marks.marks:
            if rest.startswith(mark):
                if self.calls == 0:
                    content.append(self._raw + self._held[:length])
                self._begin_calls(mark, rest)
                return True
        if rest.startswith("{"):
            self._raw += self._held[:length]
            self._held = rest
            self._begin_call(JsonCall())
            return True
        if self.calls == 0:
            content.append(self._raw)
            rest = self._held
        self._held, self._raw, self._in_calls = rest, "", False
        return True

    def _begin_calls(self, mark: str, text: str) -> None:
        """Continues after a mark, with which `text` begins."""
        self._mark = self._raw = mark
        self._held = text.removeprefix(mark)
        self._in_calls = True

    def _begin_call(self, reader: CallReader) -> None:
        self._call, self._announced = reader, False
        self._is_bare = False

    def _read_call(self, content: list[str], deltas: list[ToolCallDelta]) -> bool:
        call = self._call
        assert call is not None
        if call.name is None and not self._held:
            return False
        if not self._announced and call.name is not None and call.name not in self._names:
            content.append(self._raw)
            self._raw, self._call, self._in_calls = "", None, False
            return True
        taken = call.feed(self._held)
        self._raw += self._held[:taken]
        self._held = self._held[taken:]
        known = call.name is not None and call.name in self._names
        if known and not self._announced and self._is_bare and self._bare == "strict":
            # The name has just come: what was read so far ends with the quote after it.
            known = BARE.is_head(call.name or "", self._raw)
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
        arguments = call.pop_arguments() if self._announced else ""
        if self._announced and (arguments or call.done):
            deltas.append(ToolCallDelta(self.calls - 1, arguments, done=call.done))
        if call.done:
            self._call, self._raw, self._in_calls = None, "", True
        return call.done or bool(self._held)
