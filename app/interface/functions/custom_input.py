"""Extracts the input of a custom tool from the arguments that the model writes.

A custom tool is offered as a function with one string, `input`; the client gets that string. It knows no request and no
dialect.
"""

import json
import re

from app.interface.functions.json_call import Unescaped

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')


class CustomInput:
    """Decodes the string incrementally, however its JSON is split."""

    def __init__(self) -> None:
        self._held = ""
        self._is_open = self._is_closed = False
        self._string = Unescaped()

    def feed(self, text: str) -> str:
        """Returns the part of the input that is in the text."""
        if not self._is_open:
            self._held += text
            opening = _OPENING.match(self._held)
            if opening is None:
                return ""
            self._is_open, text = True, self._held[opening.end() :]
        known = []
        for character in text:
            if self._is_closed:
                break
            if character == '"' and not self._string.in_escape:
                self._is_closed = True
            else:
                known.append(self._string.feed(character))
        return "".join(known)

    def finish(self) -> str:
        """Returns the input of arguments in another form: their only string, or else the whole text."""
        return "" if self._is_open else _only_text(self._held)


def input_of(arguments: str) -> str:
    """Returns the input in whole arguments."""
    decoder = CustomInput()
    return decoder.feed(arguments) + decoder.finish()


def _only_text(arguments: str) -> str:
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict):
        texts = [each for each in value.values() if isinstance(each, str)]
        value = texts[0] if len(texts) == 1 else "" if not value else None
    return _without_lone_surrogates(value) if isinstance(value, str) else arguments


def _without_lone_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
