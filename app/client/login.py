"""Client of `/v1/auth`: whether a service has users, and how a session begins, continues and ends.

All functions raise OpenAIError, as the library's own calls do. Knows nothing of where sessions are kept.
"""

from dataclasses import dataclass
from typing import Any

from openai import APIError, APIStatusError, AuthenticationError, BadRequestError, NotFoundError, OpenAI, OpenAIError

from app.client.session_file import SavedSession

_ENDED = frozenset({"session_expired", "invalid_api_key"})


def has_users(client: OpenAI) -> bool:
    """Whether one can log in: only then is an empty login a bad request.

    Otherwise the path is unknown, or needs a key.
    """
    try:
        client.post("/auth/login", cast_to=object, body={})
    except BadRequestError:
        return True
    except (AuthenticationError, NotFoundError):
        pass
    return False


def log_in(client: OpenAI, name: str, password: str) -> SavedSession:
    """Begins a session. The password is sent to the service's own address only; redirects are not followed."""
    body = {"name": name, "password": password}
    answer = client.post("/auth/login", cast_to=object, body=body, options={"follow_redirects": False})
    return SavedSession(_text(answer, "name"), _text(answer, "token"))


@dataclass(frozen=True, slots=True)
class FirstLogin:
    """An administrator's password must be replaced before anything else."""

    can_recover: bool
    """Whether a recovery code can open what was saved before."""


def first_login(client: OpenAI) -> FirstLogin | None:
    """Returns None if the client's session needs no other password."""
    answer: Any = client.get("/auth/session", cast_to=object)
    return FirstLogin(bool(answer.get("can_recover"))) if answer.get("must_choose_password") else None


def choose_password(client: OpenAI, password: str, new: str, recovery_code: str | None) -> str:
    """Chooses a password; returns a new recovery code. recovery_code: the present one; None deletes what was saved."""
    body = {"password": password, "new_password": new, "recovery_code": recovery_code}
    answer = client.post("/auth/password", cast_to=object, body=body | {"lose_saved": recovery_code is None})
    return _text(answer, "recovery_code")


def is_held(client: OpenAI) -> bool:
    """Whether the client's session or key belongs to a user and is still valid; then the service keeps the chat."""
    try:
        client.get("/auth/session", cast_to=object)
    except NotFoundError:  # the service has no users any more
        return False
    except OpenAIError as error:
        if has_ended(error):
            return False
        raise
    return True


@dataclass(frozen=True, slots=True)
class LeftPages:
    """The result of saving a user's pages at logout."""

    saved: int = 0
    saved_bytes: int = 0
    unsaved: int = 0


def log_out(client: OpenAI) -> LeftPages:
    """Ends the client's session, and waits until its pages are saved. A session that has already ended is no error."""
    try:
        answer: Any = client.post("/auth/logout", cast_to=object, body={})
    except OpenAIError as error:
        if not has_ended(error):
            raise
        return LeftPages()
    return LeftPages(*(int(answer.get(name, 0)) for name in ("saved_pages", "saved_bytes", "unsaved_pages")))


def has_ended(error: OpenAIError) -> bool:
    """Whether a request failed because the session of its token is no longer valid."""
    return isinstance(error, APIError) and error.code in _ENDED


def retry_after_s(error: OpenAIError) -> int | None:
    """The wait that the service asks for."""
    said = error.response.headers.get("retry-after", "") if isinstance(error, APIStatusError) else ""
    return int(said) if said.isdecimal() else None


def _text(answer: object, name: str) -> str:
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, str):
        raise OpenAIError("The answer to the login is not understood: is that a Redoubt service?")
    return value
