"""Dialects with a list of calls after one mark.

    <|tool_call_start|>[f(a="b", n=1), g()]<|tool_call_end|>      LFM2: Python's syntax
    <|tool_call|>[{"name": "f", "arguments": {...}}, ...]         Granite 3, Phi-4-mini

A grammar makes LFM2's calls follow their schemas as JSON objects in the list, which is accepted, too. It knows no
request.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.interface.functions.dialect import MAX_HEAD_CHARACTERS, NAME, CallableFunction, CallStart, Dialect, Spelling
from app.interface.functions.stepped_call import SteppedCall
from app.interface.functions.values import string_json

_KEY = re.compile(r"\s*,?\s*([A-Za-z_]\w*)\s*=\s*")
_CONSTANTS = {None: "None", True: "True", False: "False"}


class PythonCall(SteppedCall):
    """Reads one call's arguments after its first parenthesis; each becomes JSON when it is complete."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._keys = 0

    def finish(self) -> str:
        """Returns a truncated string, but no other truncated value."""
        key = _KEY.match(self._held)
        value = self._held[key.end() :] if key is not None else ""
        if key is None or value[:1] not in ("'", '"'):
            return ""
        self._begin(key[1])
        self._passed.append(string_json(value[1:])[:-1])
        return self.pop_arguments()

    def _step(self) -> bool:
        """Reads one argument, or the end; returns False if more text is needed."""
        end = re.match(r"\s*,?\s*\)", self._held)
        if end is not None:
            self._held = self._held[end.end() :]
            self._passed.append("}" if self._keys else "{}")
            self.done = True
            return True
        key = _KEY.match(self._held)
        if key is None or (length := _value_length(self._held[key.end() :])) is None:
            return False
        self._begin(key[1])
        self._passed.append(_value_json(self._held[key.end() : key.end() + length]))
        self._held = self._held[key.end() + length :]
        return True

    def _begin(self, key: str) -> None:
        self._passed.append(f"{', ' if self._keys else '{'}{string_json(key)}: ")
        self._keys += 1


def _value_length(text: str) -> int | None:
    """Returns the length of the value at the beginning of the text; None if its end has not arrived."""
    quote, depth, escaped = "", 0, False
    for i, character in enumerate(text):
        if quote:
            # The model's template does not escape quotes in texts: a quote ends its text only where a value may end.
            following = re.match(r"\s*(.?)", text[i + 1 :], re.DOTALL) if character == quote and not escaped else None
            if following is not None and not following[1]:
                return None
            if following is not None and following[1] in ",)]}:":
                quote = ""
            escaped = character == "\\" and not escaped
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif depth == 0 and character in ",)":
            return i
        elif character in ")]}":
            depth -= 1
    return None


def _value_json(text: str) -> str:
    """Converts a value in Python's or JSON's syntax to JSON; anything else is a string."""
    text = text.strip()
    for read in (ast.literal_eval, json.loads):
        try:
            return json.dumps(read(text), ensure_ascii=False)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    is_quoted = len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]
    return string_json(text[1:-1] if is_quoted else text)


class Lfm(Dialect):
    """Calls in Python's syntax between marks."""

    name = "lfm"
    mark = "<|tool_call_start|>"
    end_mark: str = "<|tool_call_end|>"
    lists = True
    form: Final = "object"
    _head = re.compile(rf"\s*({NAME})\(")

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        listed = spelling.more('SPACE? "," SPACE? call')
        end = f"({spelling.mark(self.end_mark)})"
        return [f'lfm: found_lfm SPACE? "[" SPACE? call {listed} SPACE? "]" SPACE? {end} SPACE?']

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        head = self._head.match(text)
        return CallStart(head.end(), PythonCall(head[1])) if head is not None else None

    def may_match_call(self, text: str) -> bool:
        return len(text) < MAX_HEAD_CHARACTERS and re.fullmatch(NAME, text) is not None

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Writes the calls as the model would: names and their arguments."""
        written = (
            f"{name}({', '.join(f'{key}={_python(value)}' for key, value in arguments.items())})"
            for name, arguments in calls
        )
        return f"{self.mark}[{', '.join(written)}]{self.end_mark}"


def _python(value: Any) -> str:
    is_constant = value is None or isinstance(value, bool)
    return _CONSTANTS[value] if is_constant else json.dumps(value, ensure_ascii=False)


class Granite(Dialect):
    """A list of JSON objects after a mark."""

    name = "granite"
    mark = "<|tool_call|>"
    end_mark: str = "<|/tool_call|>"
    form: Final = "text"

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        listed = spelling.more('SPACE? "," SPACE? call')
        end = f"({spelling.mark(self.end_mark)})?"
        return [f'granite: found_granite SPACE? "[" SPACE? call {listed} SPACE? "]" SPACE? {end} SPACE?']

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Writes the calls as the model would: names and their arguments' JSON."""
        written = (f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls)
        return f"{self.mark}[{', '.join(written)}]"


LFM, GRANITE = Lfm(), Granite()
