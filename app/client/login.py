"""`/v1/auth` as a client asks it: whether a service has users, and how a session begins, goes on and ends.

All of it raises OpenAIError, as the library's own calls do. It knows nothing of where sessions are kept.
"""

from dataclasses import dataclass
from typing import Any

from openai import APIError, APIStatusError, AuthenticationError, BadRequestError, NotFoundError, OpenAI, OpenAIError

from app.client.session_file import SavedSession

_ENDED = frozenset({"session_expired", "invalid_api_key"})


def has_users(client: OpenAI) -> bool:
    """Whether one can log in: only then an empty login is a bad request. Else the path is unknown, or needs a key."""
    try:
        client.post("/auth/login", cast_to=object, body={})
    except BadRequestError:
        return True
    except (AuthenticationError, NotFoundError):
        pass
    return False


def log_in(client: OpenAI, name: str, password: str) -> SavedSession:
    """Begins a session. The password goes to the service's own address only, and follows no redirect."""
    body = {"name": name, "password": password}
    answer = client.post("/auth/login", cast_to=object, body=body, options={"follow_redirects": False})
    return SavedSession(_text(answer, "name"), _text(answer, "token"))


@dataclass(frozen=True, slots=True)
class FirstLogin:
    """A password that an administrator has set is to be replaced before anything else."""

    can_recover: bool
    """Whether a recovery code opens what was saved before."""


def first_login(client: OpenAI) -> FirstLogin | None:
    """None: the client's session needs no other password."""
    answer: Any = client.get("/auth/session", cast_to=object)
    return FirstLogin(bool(answer.get("can_recover"))) if answer.get("must_choose_password") else None


def choose_password(client: OpenAI, password: str, new: str, recovery_code: str | None) -> str:
    """The new recovery code. recovery_code: the one so far; None: what was saved before is deleted."""
    body = {"password": password, "new_password": new, "recovery_code": recovery_code}
    answer = client.post("/auth/password", cast_to=object, body=body | {"lose_saved": recovery_code is None})
    return _text(answer, "recovery_code")


def is_held(client: OpenAI) -> bool:
    """Whether the client's session or key is a user's and holds still: then the service keeps what is said."""
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
    """What became of a user's pages at the logout."""

    saved: int = 0
    saved_bytes: int = 0
    unsaved: int = 0


def log_out(client: OpenAI) -> LeftPages:
    """Ends the client's session, and waits until its pages are saved; one that has ended already is no error."""
    try:
        answer: Any = client.post("/auth/logout", cast_to=object, body={})
    except OpenAIError as error:
        if not has_ended(error):
            raise
        return LeftPages()
    return LeftPages(*(int(answer.get(name, 0)) for name in ("saved_pages", "saved_bytes", "unsaved_pages")))


def has_ended(error: OpenAIError) -> bool:
    """Whether a request with a session's token failed because the session does not hold any more."""
    return isinstance(error, APIError) and error.code in _ENDED


def retry_after_s(error: OpenAIError) -> int | None:
    """How long the service asks to wait."""
    said = error.response.headers.get("retry-after", "") if isinstance(error, APIStatusError) else ""
    return int(said) if said.isdecimal() else None


def _text(answer: object, name: str) -> str:
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, str):
        raise OpenAIError("The answer to the login is not understood: is that a Redoubt service?")
    return value
