"""The input of a custom tool, out of the arguments that the model writes for it as for a function.

A custom tool is offered as a function with one string, `input`; what the client gets is that string. It knows no
request and no dialect.
"""

import json
import re

from app.interface.functions.json_call import Unescaped

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')


class CustomInput:
    """Decodes the string while it comes, however its JSON is cut into pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._is_open = self._is_closed = False
        self._string = Unescaped()

    def feed(self, text: str) -> str:
        """Takes more of the arguments' JSON; gives more of the input."""
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
                known.append(self._string.take(character))
        return "".join(known)

    def finish(self) -> str:
        """The input where the arguments have another form: their only string, or else all that was written."""
        return "" if self._is_open else _only_text(self._held)


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
