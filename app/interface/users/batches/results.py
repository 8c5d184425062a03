"""A line's result as JSON, in OpenAI's form."""

import uuid
from dataclasses import dataclass, field
from typing import Final

import orjson

from app.interface.request.errors import ApiError

MOST_RESULT_BYTES: Final = 16 << 20
"""A result is one part of its file; a larger one is an error."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a line."""

    text: bytes = field(repr=False)
    """JSON and the end of the line."""
    is_error: bool


def answered(custom_id: str, request_id: str, body: bytes) -> Result:
    """The result of a line whose request was answered."""
    if len(body) > MOST_RESULT_BYTES:
        message = f"The answer has more than {MOST_RESULT_BYTES} bytes. Ask for less in one line."
        return failed(custom_id, request_id, ApiError(400, message, code="result_too_large"))
    return Result(_line(custom_id, _response(200, request_id, body)), is_error=False)


def failed(custom_id: str, request_id: str, error: ApiError) -> Result:
    """The result of a line whose request was refused, or failed."""
    return Result(_line(custom_id, _response(error.status, request_id, error.body())), is_error=True)


def expired(custom_id: str) -> bytes:
    """The result of a line that has not run in time."""
    message = "This request was not answered before the batch expired."
    return _line(custom_id, None, {"code": "batch_expired", "message": message})


def _response(status: int, request_id: str, body: bytes) -> dict[str, object]:
    return {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}


def _line(custom_id: str, response: dict[str, object] | None, error: dict[str, str] | None = None) -> bytes:
    result = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE)
