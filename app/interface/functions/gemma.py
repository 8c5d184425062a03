"""Gemma 4's dialect: `<|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>`. Keys are bare, and quotes are marks.

A grammar makes a call follow its schema with JSON arguments, which the reader accepts, too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from app.interface.functions.dialect import MAX_HEAD_CHARACTERS, NAME, CallableFunction, CallStart, Dialect, Spelling
from app.interface.functions.stepped_call import SteppedCall
from app.interface.functions.values import string_json, value_json
from app.interface.thinking.possible_start import possible_start

_QUOTE = '<|"|>'


class GemmaCall(SteppedCall):
    """Reads one call's arguments, from their first brace on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._open: list[str] = []  # the open brackets
        self._state: Literal["key", "value", "string", "json", "after"] = "value"
        self._is_key = False  # whether the current string is a key

    def finish(self) -> str:
        held, self._held = self._held, ""
        if self._state == "string":
            held = string_json(held)[1:-1]
        return held if self._state in ("string", "json", "value") else ""

    def _step(self) -> bool:
        """Reads one piece; returns False if more text is needed."""
        if not self._held:
            return False
        match self._state:
            case "string":
                return self._in_string()
            case "json":
                return self._in_json_string()
            case "after":
                return self._after_value()
        self._held = self._held.lstrip()
        if self._held.startswith((_QUOTE, '"')):
            self._begin_string()
            return True
        if not self._held or _QUOTE.startswith(self._held):
            return False
        return self._bare_key() if self._state == "key" else self._bare_value()

    def _begin_string(self) -> None:
        self._is_key = self._state == "key"
        self._state = "json" if self._held[0] == '"' else "string"
        self._held = self._held[1:] if self._state == "json" else self._held[len(_QUOTE) :]
        self._passed.append('"')

    def _in_string(self) -> bool:
        end = self._held.find(_QUOTE)
        safe = end if end >= 0 else possible_start(self._held, _QUOTE)
        self._passed.append(string_json(self._held[:safe])[1:-1])
        self._held = self._held[safe:]
        if end < 0:
            return False
        self._held = self._held[len(_QUOTE) :]
        self._end_string()
        return True

    def _in_json_string(self) -> bool:
        text = re.match(r'(?:[^"\\]|\\.)*', self._held, re.DOTALL)
        assert text is not None
        self._passed.append(text[0])
        self._held = self._held[text.end() :]
        if not self._held.startswith('"'):
            return False
        self._held = self._held[1:]
        self._end_string()
        return True

    def _end_string(self) -> None:
        self._passed.append('"')
        self._state = "after"

    def _bare_key(self) -> bool:
        if self._held[0] == "}":
            self._state = "after"
            return True
        end = self._held.find(":")
        if end < 0:
            return False
        self._passed.append(f"{string_json(self._held[:end].strip())}: ")
        self._held = self._held[end + 1 :]
        self._state = "value"
        return True

    def _bare_value(self) -> bool:
        if self._held[0] in "{[":
            self._open.append(self._held[0])
            self._passed.append(self._held[0])
            self._state = "key" if self._held[0] == "{" else "value"
            self._held = self._held[1:]
            return True
        end = re.search(r"[,\]}]", self._held)
        if end is None:
            return False
        if end.start():
            self._passed.append(value_json(self._held[: end.start()].strip(), frozenset()))
        self._held = self._held[end.start() :]
        self._state = "after"
        return True

    def _after_value(self) -> bool:
        character, self._held = self._held[0], self._held[1:]
        if self._is_key and not character.isspace():
            self._is_key = False
            self._passed.append(": ")
            self._state = "value"
        elif character == ",":
            self._passed.append(", ")
            self._state = "key" if self._open[-1:] == ["{"] else "value"
        elif character in "}]" and self._open:
            self._passed.append("}" if self._open.pop() == "{" else "]")
            self.done = not self._open
        return True


class Gemma(Dialect):
    """One call between two marks."""

    name = "gemma"
    mark = "<|tool_call>"
    end_mark: str = "<tool_call|>"
    inner_marks = (_QUOTE,)
    _head = re.compile(rf"call:\s*({NAME})\s*(?=\{{)")

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        calls = " | ".join(f"gemma_{i}" for i in range(len(functions)))
        return [
            f"gemma: found_gemma gemma_call {spelling.more('SPACE? mark_gemma gemma_call')} SPACE?",
            f"gemma_call: ({calls}) SPACE? ({spelling.mark(self.end_mark)})",
            *(f'gemma_{i}: "call:{one.name}" arguments_{i}' for i, one in enumerate(functions)),
        ]

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        head = self._head.match(text)
        return CallStart(head.end(), GemmaCall(head[1])) if head is not None else None

    def may_match_call(self, text: str) -> bool:
        return (
            len(text) < MAX_HEAD_CHARACTERS and re.fullmatch(rf"c|ca|cal|call|call:\s*({NAME}\s*)?", text) is not None
        )


GEMMA = Gemma()
