"""Reads a call's JSON object character by character: its name, and its arguments as they arrive."""

import json
from typing import Literal


class Unescaped:
    """Decodes a JSON string character by character."""

    def __init__(self) -> None:
        self._escape = ""
        self._high = ""  # the first half of a surrogate pair

    @property
    def in_escape(self) -> bool:
        """Whether the next character belongs to an escape."""
        return bool(self._escape)

    def feed(self, character: str) -> str:
        """Returns the characters that are complete now."""
        if not self._escape and character != "\\":
            return self._paired(character)
        self._escape += character
        if len(self._escape) < (6 if self._escape[:2] == "\\u" else 2):
            return ""
        escape, self._escape = self._escape, ""
        try:
            return self._paired(json.loads(f'"{escape}"'))
        except ValueError:
            return self._paired("\ufffd")

    def _paired(self, character: str) -> str:
        high, self._high = self._high, ""
        if "\ud800" <= character <= "\udbff":
            self._high = character
            return "\ufffd" if high else ""
        if "\udc00" <= character <= "\udfff":
            pair = (high + character).encode("utf-16", "surrogatepass")
            return pair.decode("utf-16") if high else "\ufffd"
        return "\ufffd" + character if high else character


class _Arguments:
    """Converts the value that the model writes to the JSON object of a call's arguments.

    Some models write the object as a JSON string, which is decoded. A missing value or null becomes an empty object.
    """

    def __init__(self) -> None:
        self._kind: Literal["unknown", "plain", "string", "unescaped", "closed"] = "unknown"
        self._held = ""  # the value so far, until its kind is known
        self._string = Unescaped()
        self._text = ""  # the decoded string so far

    def feed(self, character: str) -> str:
        """Returns the characters of the arguments that are known now."""
        match self._kind:
            case "plain":
                return character
            case "unknown":
                return self._begin(character)
            case "string" | "unescaped":
                return self._in_string(character)
        return ""

    def end(self) -> str:
        """Returns the rest, once the value is complete."""
        return "{}" if self._kind in ("unknown", "string") else ""

    def _begin(self, character: str) -> str:
        self._held = (self._held + character).lstrip()
        if self._held == '"':
            self._kind = "string"
        elif not "null".startswith(self._held.rstrip()):
            self._kind = "plain"
            return self._held
        return ""

    def _in_string(self, character: str) -> str:
        self._held += character
        if character == '"' and not self._string.in_escape:
            self._kind = "closed" if self._kind == "unescaped" else "string"
            return ""
        text = self._string.feed(character)
        if self._kind == "unescaped":
            return text
        self._text = (self._text + text).lstrip()
        if self._text:
            self._kind = "unescaped" if self._text[0] == "{" else "plain"
            return self._text if self._kind == "unescaped" else self._held
        return ""


class JsonCall:
    """Reads one call's JSON object: its name, and the text of its arguments."""

    def __init__(self, *, ends_with_arguments: bool = False) -> None:
        """ends_with_arguments: the object itself has no closing brace."""
        self.name: str | None = None
        self.done = False
        self.is_call = True  # until a key shows that it is not
        self._last_depth = int(ends_with_arguments)
        self._depth = 0
        self._in_string = self._escaped = False
        self._key = ""
        self._string = ""
        self._expects_key = False
        self._arguments: _Arguments | None = None
        self._in_arguments = False
        self._passed: list[str] = []

    def feed(self, text: str) -> int:
        """Reads until the object ends, the name is known, or it is no call; returns the number of characters read."""
        name, is_call = self.name, self.is_call
        for i, character in enumerate(text):
            self._feed_character(character)
            if self.done or self.is_call != is_call or self.name != name:
                return i + 1
        return len(text)

    def pop_arguments(self) -> str:
        """Returns the arguments' text since the last call of this method."""
        text = "".join(self._passed)
        self._passed.clear()
        return text

    def finish(self) -> str:
        """Returns nothing: all text was passed on."""
        return ""

    def _feed_character(self, character: str) -> None:
        if self._in_string:
            self._feed_in_string(character)
        elif character == '"':
            self._in_string, self._string = True, ""
        elif character in "{[":
            self._depth += 1
            self._expects_key = character == "{" and self._depth == 1
        elif character in "}]":
            self._depth -= 1
            self.done = self._depth == self._last_depth
        elif character == ":" and self._depth == 1 and self._expects_key:
            self._begin_value()
            return
        ended = self._depth == 0 or (self._depth == 1 and character == "," and not self._in_string)
        if self._depth == 1 and not self._in_string and character in " \t\n\r":
            return  # around a value
        if self._in_arguments and self._arguments is not None:
            self._passed.append(self._arguments.end() if ended else self._arguments.feed(character))
            self._in_arguments = not ended
        if self.done and self._arguments is None:
            self._passed.append("{}")
        if ended and character == ",":
            self._expects_key = True

    def _begin_value(self) -> None:
        self._expects_key = False
        if self._key not in ("name", "arguments", "parameters", "type", "id"):
            self.is_call = False
        if self._key in ("arguments", "parameters") and self._arguments is None:
            self._arguments, self._in_arguments = _Arguments(), True

    def _feed_in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1 and self._expects_key:
                self._key = self._string
            elif self._depth == 1 and self._key == "name":
                self.name = self._string
            return
        self._string += character


def named_json_call(name: str) -> JsonCall:
    """Returns a reader for the arguments of a call whose name was read before them."""
    call = JsonCall(ends_with_arguments=True)
    beginning = f'{{"name": "{name}", "arguments": '
    while beginning:
        beginning = beginning[call.feed(beginning) :]
    return call
