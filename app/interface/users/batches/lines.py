"""The lines of a batch's file: cut from its content, and checked before any of them runs."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import orjson

from app.interface.request.errors import ApiError
from app.interface.wire.batches import BatchLine
from app.interface.wire.parse import parse

MOST_FAULTS: Final = 100
"""How many faults of a file its user is told."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank."""

    number: int
    """From 1, blank lines counted."""
    text: bytes | None = field(repr=False)
    """None: it is too long."""


async def lines_of(content: AsyncGenerator[bytes, None], most_bytes: int) -> AsyncGenerator[Line, None]:
    """Cuts content into lines; of one longer than `most_bytes` nothing is kept."""
    number, rest, is_long = 1, bytearray(), False
    async with aclosing(content) as pieces:
        async for piece in pieces:
            *whole, last = piece.split(b"\n")
            for end in whole:
                rest += end
                if (line := _line(number, rest, is_long=is_long, most_bytes=most_bytes)) is not None:
                    yield line
                number, is_long = number + 1, False
                rest.clear()
            rest += last
            if len(rest) > most_bytes:
                is_long = True
                rest.clear()
    if (line := _line(number, rest, is_long=is_long, most_bytes=most_bytes)) is not None:
        yield line


def _line(number: int, text: bytearray, *, is_long: bool, most_bytes: int) -> Line | None:
    if is_long or len(text) > most_bytes:
        return Line(number, None)
    stripped = bytes(text.removeprefix(_BOM) if number == 1 else text).strip()
    return Line(number, stripped) if stripped else None


@dataclass(frozen=True, slots=True)
class Request:
    """What a line asks for."""

    custom_id: str
    body: bytes = field(repr=False)
    """JSON."""


def request_of(text: bytes) -> Request:
    """Returns a line's request; the line was checked.

    A response is stored only where its line says so: thousands of them would leave no room for the user's chats.
    """
    line = orjson.loads(text)
    body = line["body"]
    if line["url"] == "/v1/responses" and body.get("store") is None:
        body["store"] = False
    return Request(line["custom_id"], orjson.dumps(body))


@dataclass(slots=True)
class CheckedFile:
    """What was found in a file."""

    total: int = 0
    """Its lines that are not blank."""
    model: str | None = None
    first: int | None = None
    """The number of the first right line, which decides about the model."""
    faults: list[dict[str, str | int | None]] = field(default_factory=list)

    def fault(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        """Notes what is wrong."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append({"code": code, "line": line, "message": message, "param": param})


async def check_lines(lines: AsyncIterator[Line], endpoint: str, *, most_lines: int, most_bytes: int) -> CheckedFile:
    """Checks what can be known of lines without their model. most_bytes: of a line."""
    found, ids = CheckedFile(), dict[bytes, int]()
    async for line in lines:
        found.total += 1
        if found.total > most_lines:
            found.fault("too_many_lines", f"A batch has at most {most_lines} lines.", line.number)
            break
        if line.text is None:
            found.fault("line_too_long", f"A line has at most {most_bytes} bytes.", line.number)
            continue
        _check(found, ids, line.number, line.text, endpoint)
    if not found.total:
        found.fault("empty_file", "The file has no line.")
    return found


def _check(found: CheckedFile, ids: dict[bytes, int], number: int, text: bytes, endpoint: str) -> None:
    try:
        line = parse(BatchLine, text)
    except ApiError as error:
        message = error.message.replace("The request body", "The line")
        found.fault(error.code or "invalid_value", message, number, error.param)
        return
    same = ids.setdefault(hashlib.sha256(line.custom_id.encode(errors="replace")).digest(), number)
    if same != number:
        found.fault("duplicate_custom_id", f"Line {same} has the same 'custom_id'.", number, "custom_id")
    if line.url != endpoint:
        message = f"'url' is not the batch's endpoint, which is {endpoint}."
        found.fault("mismatched_url", message, number, "url")
    model = line.body.get("model")
    if model is not None and not isinstance(model, str):
        found.fault("invalid_value", "'body.model' should be a string.", number, "body.model")
    elif found.first is None:
        found.first, found.model = number, model
    elif model != found.model:
        message = f"'body.model' differs from that of line {found.first}: a batch is for one model."
        found.fault("mismatched_model", message, number, "body.model")
    for name in ("stream", "background"):
        if line.body.get(name):
            message = f"'body.{name}' is not possible in a batch: nobody listens."
            found.fault("unsupported_parameter", message, number, f"body.{name}")
