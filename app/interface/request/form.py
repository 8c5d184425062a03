"""Reads an uploaded form (multipart/form-data) while it arrives: nothing of the file is written to this disk.

Knows neither users nor what a file is for.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.interface.request import errors
from app.interface.request.errors import ApiError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs bytes of what it refuses

FILE: Final = "file"
_MOST_FIELDS = 16
_MOST_FIELD_BYTES = 1024
_MOST_NAME_CHARACTERS = 256
_MOST_AROUND_BYTES = 64 << 10
"""Of a form beside its file."""


@dataclass(slots=True)
class Form:
    """What a form has beside the content of its file."""

    file_name: str | None = None
    """None: there was no file."""
    fields: dict[str, str] = field(default_factory=dict)


async def read_form(request: Request, limit_bytes: int, write: Callable[[bytes], Awaitable[None]]) -> Form:
    """Reads the form and passes its file on, piece by piece. limit_bytes: of the file.

    Raises ApiError (400, 413, 415), and what `write` raises.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise ApiError(415, "The request needs the header 'Content-Type: multipart/form-data' with its boundary.")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit_bytes + _MOST_AROUND_BYTES):
        raise errors.file_too_large(limit_bytes)
    parts = _Parts()
    try:
        parser = MultipartParser(options[b"boundary"], parts.callbacks())
        taken = file_bytes = 0
        async for chunk in request.stream():
            parser.write(chunk)
            content = parts.take()
            taken, file_bytes = taken + len(chunk), file_bytes + len(content)
            if file_bytes > limit_bytes or taken > file_bytes + _MOST_AROUND_BYTES:
                raise errors.file_too_large(limit_bytes)
            if content:
                await write(content)
        parser.finalize()
    except FormParserError:
        raise _not_a_form() from None
    if not parts.has_ended:
        raise _not_a_form()
    return parts.form


class _Parts:
    """Takes the parser's events."""

    def __init__(self) -> None:
        self.form = Form()
        self.has_ended = False
        self._header = self._value = b""
        self._disposition = b""
        self._name = ""
        self._content = bytearray()
        """Of the file, not taken yet."""

    def callbacks(self) -> "MultipartCallbacks":
        """Returns what the parser is to call."""
        return {
            "on_part_begin": self._part_begins,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_end": self._ended,
        }

    def take(self) -> bytes:
        """Returns what has come of the file since."""
        content = bytes(self._content)
        self._content.clear()
        return content

    def _part_begins(self) -> None:
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = _text(options.get(b"name", b""))
        is_file = b"filename" in options
        if not name or len(self.form.fields) >= _MOST_FIELDS:
            raise _not_a_form()
        if name in self.form.fields or (name == FILE and self.form.file_name is not None):
            raise errors.invalid(f"'{name[:64]}' is given twice.", name[:64], "invalid_value")
        if is_file != (name == FILE):
            what = "a file: give it a file name" if name == FILE else "not a file"
            raise errors.invalid(f"'{name[:64]}' is {what}.", name[:64], "invalid_value")
        if is_file:
            self.form.file_name = _text(options[b"filename"])[:_MOST_NAME_CHARACTERS]
        else:
            self.form.fields[name] = ""
        self._name = name

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._content += data[start:end]
            return
        value = self.form.fields[self._name] + data[start:end].decode("latin-1")
        if len(value) > _MOST_FIELD_BYTES:
            raise errors.invalid(f"'{self._name[:64]}' is too long.", self._name[:64], "invalid_value")
        self.form.fields[self._name] = value

    def _ended(self) -> None:
        self.has_ended = True


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _not_a_form() -> ApiError:
    return errors.invalid("The request body is not a whole multipart/form-data form.", code="invalid_value")
