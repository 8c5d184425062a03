"""Failures as clients of Anthropic's API expect them: which requests those are, and the error object.

It knows Anthropic's names for errors, and no route but those of its API.
"""

from typing import Any, Final

from starlette.requests import Request

from app.interface.request.errors import CONTEXT_LENGTH_EXCEEDED, MODEL_NOT_FOUND, ApiError

VERSION_HEADER: Final = "anthropic-version"
REQUEST_ID_HEADER: Final = "request-id"
_MESSAGES: Final = "/v1/messages"
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def speaks_anthropic(request: Request) -> bool:
    """Whether a request is of Anthropic's API: by its path, or because its client says so."""
    path = request.url.path
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/") or VERSION_HEADER in request.headers


def anthropic_error(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Returns the error object. request_id: None in a stream, whose head has it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    body = {"type": "error", "error": {"type": kind, "message": _message(error)}}
    return body if request_id is None else {**body, "request_id": request_id}


def _message(error: ApiError) -> str:
    if error.code == CONTEXT_LENGTH_EXCEEDED:
        # By these words clients (Claude Code, for one) know that they have to shorten the conversation.
        lengths = "" if error.lengths is None else "{} tokens > {} maximum. ".format(*error.lengths)
        return f"prompt is too long: {lengths}{error.message}"
    if error.code == MODEL_NOT_FOUND and "'claude-" in error.message:
        return f"{error.message} Claude Code has its models from ANTHROPIC_MODEL and ANTHROPIC_DEFAULT_HAIKU_MODEL."
    return error.message
