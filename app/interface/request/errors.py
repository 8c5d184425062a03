"""The failures that clients see: status, OpenAI's error object, and headers.

It knows OpenAI's names for errors and the engine's exceptions, and nothing of FastAPI or Ray. It logs only bugs, by
type and location.
"""

import logging
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import orjson

from app.messages.accounts import AccountsError, Refusal
from app.messages.failures import (
    ConstraintError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    RequestGivenUpError,
    RequestTooLongError,
)

logger = logging.getLogger(__name__)

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
MODEL_NOT_FOUND = "model_not_found"
INVALID_CREDENTIAL = ("invalid_api_key", "session_expired")
"""Refusal codes for a credential that is invalid or has expired."""


@dataclass(eq=False)
class ApiError(Exception):
    """A failure as the client sees it. The message may quote the request, so it is never logged."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    lengths: tuple[int, int] | None = None
    """The tokens of a prompt that does not fit, and of the context."""

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        return orjson.dumps(
            {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
        )

    def renamed(self, name_of: Callable[[str], str]) -> "ApiError":
        """Returns the failure with another name of its field."""
        if self.param is None:
            return self
        name = name_of(self.param)
        return replace(self, message=self.message.replace(f"'{self.param}'", f"'{name}'"), param=name)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong; `param` names the field."""
    return ApiError(400, message, param=param, code=code)


def answered_elsewhere() -> ApiError:
    """409: another ingress writes this response."""
    message = "Another ingress writes this response. Try again, or ask for it without 'stream' until it has ended."
    return ApiError(409, message, code="response_in_progress", headers={"Retry-After": "1"})


def unauthorized() -> ApiError:
    """401: no API key, or a wrong one."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(
        401,
        "A valid API key is needed: 'Authorization: Bearer <key>', or 'x-api-key: <key>'.",
        code="invalid_api_key",
        headers=headers,
    )


def session_expired() -> ApiError:
    """401: a web page assumes to be logged in, but its browser has no session any more."""
    return from_refusal(Refusal("session_expired", "The session has ended. Log in again."))


def another_user() -> ApiError:
    """409: a web page assumes to be one user, but its browser has another one's session."""
    return ApiError(409, "Another user has logged in in this browser since.", code="another_user")


def no_such_model(name: str, served: Iterable[str]) -> ApiError:
    """404: the model is not served here, but these are."""
    these = f" Served: {names}." if (names := ", ".join(served)) else ""
    message = f"The model '{_shortened(name)}' is not served here.{these}"
    return ApiError(404, message, param="model", code=MODEL_NOT_FOUND)


def no_such_route(method: str, path: str, hint: str = "") -> ApiError:
    """404: this API has no such path. hint: a sentence on what may be meant."""
    message = f"Unknown request URL: {method} {_shortened(path)}. {hint}".rstrip()
    return ApiError(404, message, code="unknown_url")


def wrong_method(method: str, allowed: str) -> ApiError:
    """405: the path exists, with another method."""
    return ApiError(405, f"{method} is not allowed here; use {allowed}.", headers={"Allow": allowed})


def body_too_large(limit_bytes: int) -> ApiError:
    """413: the body is too large; none of it is kept."""
    return ApiError(413, f"The request body is larger than {limit_bytes} bytes.", code="request_too_large")


def file_too_large(limit_bytes: int) -> ApiError:
    """413: a file in a form is too large, or one that a request refers to."""
    return ApiError(413, f"The file has more than {limit_bytes:,} bytes: send a part of it.", code="request_too_large")


def body_too_slow() -> ApiError:
    """408: the body stopped arriving, or arrives too slowly."""
    return ApiError(408, "The request body did not arrive in time.", code="request_timeout")


def wrong_content_type() -> ApiError:
    """415: the body is not declared as JSON. Browsers may send such bodies across sites without a preflight."""
    return ApiError(415, "The request needs the header 'Content-Type: application/json'.")


def wrong_content_encoding() -> ApiError:
    """415: an unsupported content encoding."""
    headers = {"Accept-Encoding": "gzip, zstd"}
    return ApiError(415, "'Content-Encoding' may be gzip or zstd, or left out.", headers=headers)


def not_compressed(coding: str) -> ApiError:
    """400: a body declared as compressed is not, or is truncated."""
    message = f"'Content-Encoding' says {coding}, but the body is not one whole {coding} stream."
    return invalid(message, code="invalid_value")


def context_length_exceeded(
    prompt_tokens: int, output_tokens: int, context_tokens: int, param: str, *, at_least: bool = False
) -> ApiError:
    """400: prompt and requested output do not fit. at_least: the prompt was refused before its tokens were counted."""
    count = f"at least {prompt_tokens}" if at_least else f"{prompt_tokens}"
    # Clients (litellm, for one) recognize this error by OpenAI's first words.
    return ApiError(
        400,
        f"This model's maximum context length is {context_tokens} tokens, but {count} in the prompt and "
        f"{output_tokens} for the output were asked for. Shorten the prompt or ask for less output.",
        param=param,
        code=CONTEXT_LENGTH_EXCEEDED,
        lengths=(prompt_tokens, context_tokens),
    )


def queue_full(retry_after_s: int, message: str) -> ApiError:
    """429: every worker's queue is full, or the caller's share of them is."""
    return ApiError(
        429,
        message,
        type="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(retry_after_s)},
    )


def unavailable(retry_after_s: int, message: str = "No worker is up. Try again later.") -> ApiError:
    """503: no worker can do the work."""
    return ApiError(
        503,
        message,
        type="server_error",
        code="service_unavailable",
        headers={"Retry-After": str(retry_after_s)},
    )


def foreign_origin() -> ApiError:
    """403: a cookie without the service's own Origin: another site's web page may have sent it."""
    return ApiError(403, "With a cookie, the request needs this site's own Origin.", code="foreign_origin")


def foreign_host(name: str | None) -> ApiError:
    """421: `Host` names another service: another site's web page may have sent it. None: it is malformed."""
    which = "the name in this request's Host header" if name is None else f"the name '{_shortened(name)}'"
    return ApiError(
        421,
        f"This service does not answer to {which}. If clients are to use it, list it under 'ingress.allowed_hosts' in "
        "the service's configuration file.",
        code="foreign_host",
    )


def from_refusal(refusal: Refusal) -> ApiError:
    """Converts a refusal of the accounts."""
    statuses = {
        "invalid_api_key": 401,
        "session_expired": 401,
        "invalid_login": 401,
        "password_change_required": 403,
        "password_expired": 403,
        "recovery_code_required": 400,
        "admin_only": 403,
        "owner_only": 403,
        "not_found": 404,
        "conflict": 409,
        "conversation_conflict": 409,
        "invalid_value": 400,
        "too_many_logins": 429,
        "rate_limit_exceeded": 429,
        "insufficient_quota": 429,
        "service_unavailable": 503,
    }
    status = statuses[refusal.code]
    kind = {429: "rate_limit_error", 503: "server_error"}.get(status, "invalid_request_error")
    headers = {"WWW-Authenticate": "Bearer"} if refusal.code in INVALID_CREDENTIAL else {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    return ApiError(status, refusal.message, kind, refusal.param, refusal.code, headers)


def memory_not_saved(saved: int, unsaved: int) -> ApiError:
    """507: KV pages could not be saved. Answers continue without."""
    message = (
        f"{saved} pages were saved and {unsaved} could not be: the disk is full, slow or gone, or your quota is less."
        " They are computed again when they are needed."
    )
    return ApiError(507, message, type="server_error", code="memory_not_saved")


def from_framework(status: int, detail: str) -> ApiError:
    """Converts a refusal of the web framework."""
    return ApiError(status, detail)


def internal(request_id: str) -> ApiError:
    """500: a bug of the service; it is logged under this id."""
    return ApiError(
        500,
        f"The server failed on this request (id {request_id}).",
        type="server_error",
        code="internal_error",
    )


def from_engine(error: Exception, retry_after_s: int) -> ApiError | None:
    """Converts a refusal of the engine or the accounts; None if the error is a bug."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AccountsError):
        return from_refusal(error.refusal)
    if isinstance(error, QueueFullError):
        return queue_full(max(retry_after_s, error.retry_after_s or 0), str(error))
    if isinstance(error, RequestTooLongError):
        return invalid(str(error), code=CONTEXT_LENGTH_EXCEEDED)
    if isinstance(error, ConstraintError):
        return invalid(error.message_for_client, "response_format", "invalid_value")
    if isinstance(error, InvalidRequestError):
        return invalid(str(error))
    if isinstance(error, EngineStoppedError):
        return unavailable(retry_after_s, str(error))
    return None


def given_up(error: RequestGivenUpError, request_id: str) -> ApiError:
    """500: workers died while they computed this request; it is logged under this id."""
    logger.error("request %s is given up: %s", request_id, error)
    return ApiError(500, f"{error} (id {request_id})", type="server_error", code="request_given_up")


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"


def as_api_error(error: Exception, request_id: str, retry_after_s: int) -> ApiError:
    """Converts any exception to the failure that the client sees.

    A bug is logged by type and location; its message is not, because it may quote a prompt.
    """
    if isinstance(error, RequestGivenUpError):
        return given_up(error, request_id)
    known = from_engine(error, retry_after_s)
    if known is not None:
        return known
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("request %s failed: %s\n%s", request_id, type(error).__qualname__, frames)
    return internal(request_id)
