"""Reads the files of a request before it is planned. Knows the fields that files are in, and not how a file is read."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol

from app.documents.document import MOST_CHARACTERS, BusyError, Document, DocumentError
from app.documents.reader import DocumentReader, Load
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.wire.attached import UNNAMED, AttachedFile, FilePart
from app.interface.wire.message_blocks import DocumentBlock
from app.messages.requests import Priority

INVALID_FILE: Final = "invalid_file"
_MOST_FILES: Final = 32
"""Of one request, that are to be read."""
_BUSY_S: Final = 5

StoredFile = Callable[[Caller, str], Awaitable[tuple[str, bytes]]]
"""Returns a user's file, its name and content. Raises AccountsError, ApiError."""


class Attached(Protocol):
    """A file in a request."""

    @property
    def is_read(self) -> bool:
        """Whether its text is there."""

    @property
    def filename(self) -> str | None: ...
    @property
    def file_data(self) -> str | None: ...
    @property
    def file_id(self) -> str | None: ...
    def read_as(self, name: str, text: str, pages: int | None) -> None:
        """Takes what was read."""


class AttachedFiles:
    """Reads the files of one ingress' requests."""

    def __init__(self, reader: DocumentReader, stored: StoredFile | None = None) -> None:
        """stored: finds users' files; None: there are no users."""
        self.reader: Final = reader
        self._stored = stored

    async def read_all(self, body: object, caller: Caller) -> int:
        """Reads each file in the body that is not read yet; returns the characters that came of them.

        Raises ApiError (400, 503), AccountsError.
        """
        files = [(place, one) for place, one in _files_in(body) if not one.is_read]
        if len(files) > _MOST_FILES:
            raise errors.invalid(f"There are {len(files)} files to read, and {_MOST_FILES} at most.", files[0][0])
        characters = 0
        for place, file in files:
            document = await self.document(file, caller, place)
            if not document.text:
                notes = " ".join(document.notes)
                message = f'"{document.name}" has no text. {notes}'.rstrip()
                raise errors.invalid(message, place, INVALID_FILE)
            file.read_as(document.name, document.text, document.pages)
            characters += len(document.text)
            if characters > MOST_CHARACTERS:
                message = f"The files have more than {MOST_CHARACTERS:,} characters together: attach fewer."
                raise errors.invalid(message, place, INVALID_FILE)
        return characters

    async def document(self, file: Attached, caller: Caller, place: str) -> Document:
        """Reads one file. place: its field. Raises as `read_all` does."""

        async def load() -> tuple[str, bytes]:
            if file.file_id is None:
                return file.filename or UNNAMED, _decoded(file.file_data or "", f"{place}.{_data_field(file)}")
            name, content = await self.stored(caller, file.file_id, f"{place}.file_id")
            return file.filename or name, content

        return await self.read(load, place, caller)

    async def stored(self, caller: Caller, file_id: str, place: str) -> tuple[str, bytes]:
        """Returns a stored file's name and content. Raises ApiError (400), AccountsError."""
        if self._stored is None or caller.identity is None:
            message = f"'{place}' is for users only, who log in or send a key of their own: send 'file_data'."
            raise errors.invalid(message, place, "unsupported_parameter")
        return await self._stored(caller, file_id)

    async def read(self, load: Load, place: str, caller: Caller) -> Document:
        """Reads what `load` returns. Raises ApiError (400, 503), what `load` raises."""
        try:
            return await self.reader.read(
                load, sender=caller.tenant or caller.client, in_background=caller.priority == Priority.BATCH
            )
        except DocumentError as error:
            raise errors.invalid(str(error), place, INVALID_FILE) from None
        except BusyError:
            raise errors.unavailable(_BUSY_S, "Too many files are being read. Try again soon.") from None


def _decoded(data: str, place: str) -> bytes:
    """Returns base64's bytes, of a `data:` URL too. Raises ApiError (400)."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        message = f"'{place}' is not valid base64, or was cut off: send all of the file's bytes, encoded."
        raise errors.invalid(message, place, "invalid_value") from None


def _data_field(file: Attached) -> str:
    return "data" if isinstance(file, DocumentBlock) else "file_data"


def _files_in(body: object) -> Iterator[tuple[str, Attached]]:
    """Yields the files of any dialect's messages, with their places."""
    for name in ("messages", "input", "items"):
        for index, message in _listed(getattr(body, name, None)):
            for field in ("content", "output"):
                yield from _files_of(getattr(message, field, None), f"{name}[{index}].{field}")


def _files_of(parts: Any, place: str) -> Iterator[tuple[str, Attached]]:
    for index, part in _listed(parts):
        if isinstance(part, AttachedFile):
            yield f"{place}[{index}]", part
        elif isinstance(part, DocumentBlock):
            yield f"{place}[{index}].source", part
        elif isinstance(part, FilePart):
            yield f"{place}[{index}].file", part.file
        else:  # a tool's result
            yield from _files_of(getattr(part, "content", None), f"{place}[{index}].content")


def _listed(value: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(value if isinstance(value, list) else ())
