"""Reads a call whose arguments stand between tags, key by key, and converts them to JSON incrementally.

The tags are the dialect's. It knows no grammar.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.interface.functions.stepped_call import SteppedCall
from app.interface.functions.values import string_json, value_json
from app.interface.thinking.possible_start import possible_start

_MAX_KEY_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags around keys and values."""

    key: str
    after_key: str
    value: str
    """The beginning of a value; empty: the end of its key."""
    after_value: str
    ends: tuple[str, ...]
    """The possible ends of a call."""
    in_lines: bool
    """Whether a value has lines of its own: then a line end on either side is not part of it."""


class TaggedCall(SteppedCall):
    """Reads one call after its name."""

    def __init__(self, name: str, tags: Tags, types: Callable[[str], frozenset[str]]) -> None:
        """types: returns the types that an argument's value may have, by its key (`values`)."""
        super().__init__(name)
        self._tags, self._types_of = tags, types
        self._keys = 0
        self._types: frozenset[str] | None = None  # of the current value
        self._has_begun = False  # whether a character of that value has arrived
        space, end = r"\s*", "|".join(map(re.escape, (tags.key, *tags.ends)))
        begin = f"{space}{re.escape(tags.value)}" if tags.value else ""
        self._key = re.compile(f"{re.escape(tags.key)}([^<>]*?){re.escape(tags.after_key)}{begin}", re.DOTALL)
        line_end = r"\n?" if tags.in_lines else ""
        self._value_end = re.compile(f"{line_end}{re.escape(tags.after_value)}(?={space}(?:{end}))")

    def finish(self) -> str:
        held, self._held = self._held, ""
        if self._types is None:
            return ""
        certain = self._certain(held)
        if self._types != {"string"}:
            self._passed.append(value_json(held[:certain], self._types) if self._ends_at(held) >= 0 else held)
        else:
            whole = self._ends_at(held) >= 0
            self._passed.append(string_json(held[:certain] if whole else held)[1 : None if whole else -1])
        return self.pop_arguments()

    def _step(self) -> bool:
        return self._read_key() if self._types is None else self._read_value(self._types)

    def _read_key(self) -> bool:
        """Reads up to a value, or the call's end; returns False if more text is needed."""
        tags = self._tags
        self._held = self._held.lstrip()
        for end in tags.ends:
            if self._held.startswith(end):
                self._held = self._held[len(end) :]
                self._passed.append("}" if self._keys else "{}")
                self.done = True
                return True
        match = self._key.match(self._held)
        if match is not None:
            key = match[1].strip()
            self._held = self._held[match.end() :]
            self._passed.append(f"{', ' if self._keys else '{'}{string_json(key)}: ")
            self._keys += 1
            self._types, self._has_begun = self._types_of(key), False
            return True
        is_open = self._held.startswith(tags.key) and len(self._held) < _MAX_KEY_CHARACTERS
        if is_open or any(tag.startswith(self._held) for tag in (tags.key, *tags.ends)):
            return False
        following = self._held.find("<", 1)  # text between arguments is skipped
        self._held = self._held[following:] if following > 0 else ""
        return bool(self._held)

    def _read_value(self, types: frozenset[str]) -> bool:
        """Reads more of a value; returns False if more text is needed."""
        if not self._has_begun:
            if not self._held:
                return False
            self._held = self._held.removeprefix("\n") if self._tags.in_lines else self._held
            self._has_begun = True
            self._passed.append('"' if types == {"string"} else "")
        end = self._value_end.search(self._held)
        certain = self._certain(self._held) if end is None else end.start()
        if types == {"string"}:
            self._passed.append(string_json(self._held[:certain])[1 : -1 if end is None else None])
        elif end is not None:
            self._passed.append(value_json(self._held[:certain], types))
        if end is not None:
            self._held, self._types = self._held[end.end() :], None
        elif types == {"string"}:
            self._held = self._held[certain:]
        return end is not None

    def _certain(self, text: str) -> int:
        """Returns how many of the characters certainly belong to the value."""
        end = self._ends_at(text)
        start = end if end >= 0 else possible_start(text, self._tags.after_value)
        return start - 1 if self._tags.in_lines and text[:start].endswith("\n") else start

    def _ends_at(self, text: str) -> int:
        """Returns where the value ends, if the text after it fits; else -1."""
        end = text.rfind(self._tags.after_value)
        rest = text[end + len(self._tags.after_value) :].lstrip()
        return end if any(tag.startswith(rest) for tag in (self._tags.key, *self._tags.ends)) else -1
