"""FastAPI dependencies of the routes: authentication, the administrator check and admission by the user's limits."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import urlsplit

from fastapi import Request

from app.interface.request import errors
from app.interface.request.callers import Caller, anonymous, caller_of, sent_key
from app.interface.users.gate import AccountsGate, Meter
from app.messages.accounts import AccountsError, Identity, RateState

SESSION_COOKIE = "redoubt_session"
USER_HEADER = "x-redoubt-user"
"""The header in which a web page says whose session it has: the user's id, or "none". The cookie may be newer."""
_NOBODY = "none"
_OURS = ("rdbt_", "rdbs_")
"""The prefixes of our credentials. Stock clients send other keys where none is needed."""
_AT_FIRST = ("/v1/auth/session", "/v1/auth/password", "/v1/auth/logout")
"""The only paths that are served to a user who must choose a password."""
_READING = ("GET", "HEAD", "OPTIONS")


class UserCheck:
    """Authenticates the user of an API key, or of a session token sent as key or cookie."""

    def __init__(self, gate: AccountsGate) -> None:
        self._gate = gate

    async def __call__(self, request: Request) -> None:
        """Sets `request.state.caller`. Raises ApiError (401, 403), AccountsError."""
        secret, believed = sent_key(request), request.headers.get(USER_HEADER)
        if secret is None and believed != _NOBODY and (cookie := request.cookies.get(SESSION_COOKIE)) is not None:
            check_origin(request)
            secret = cookie
        if secret is None and believed not in (None, _NOBODY):
            raise errors.session_expired()
        if self._gate.guests and (secret is None or not secret.startswith(_OURS)):
            request.state.caller = anonymous(request)
            return
        if secret is None:
            raise errors.unauthorized()
        identity = await self._gate.identify(secret)
        if believed not in (None, _NOBODY, identity.user_id):
            raise errors.another_user()
        if identity.must_choose_password and request.url.path not in _AT_FIRST:
            message = "Choose a password of your own first: log in on the page /login, or with login in redoubt chat."
            raise AccountsError("password_change_required", message)
        request.state.caller = caller_as(identity, secret)


def caller_as(identity: Identity, secret: str) -> Caller:
    """Returns a user as a caller. secret: the user's credential."""
    return Caller(hashlib.sha256(b"user" + identity.user_id.encode()).digest(), identity, secret)


class LoginCheck:
    """Decides whether a browser must log in before it gets a web page."""

    def __init__(self, gate: AccountsGate) -> None:
        self._gate = gate

    async def __call__(self, request: Request) -> bool:
        """Returns whether a login is needed; never where guests are served. Raises AccountsError (503)."""
        if self._gate.guests:
            return False
        try:
            identity = await self._gate.identify(request.cookies.get(SESSION_COOKIE, ""))
        except AccountsError as error:
            return error.refusal.code in errors.INVALID_CREDENTIAL
        return identity.must_choose_password


def check_origin(request: Request) -> None:
    """Raises ApiError (403) if another site's web page may have sent this with a user's cookie (CSRF)."""
    if request.method not in _READING and not has_own_origin(request):
        raise errors.foreign_origin()


def has_own_origin(request: Request) -> bool:
    """Returns whether a web page of this service sent the request."""
    try:
        host = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:  # not a URL, such as http://[
        return False
    return bool(host) and host == request.headers.get("host")


async def check_admin(request: Request) -> None:
    """Raises ApiError (403) unless the caller is an administrator. The accounts check it again."""
    refuse_others(caller_of(request).identity)


def refuse_others(identity: Identity | None) -> None:
    """Raises ApiError (403) unless the user is an administrator."""
    if identity is None or identity.role != "admin":
        raise errors.from_refusal(AccountsError("admin_only", "Only administrators may do that.").refusal)


class AdmissionCheck:
    """Admits a user's request if the user's limits allow it, and counts its tokens until it has ended."""

    def __init__(self, gate: AccountsGate) -> None:
        self._gate = gate

    async def __call__(self, request: Request) -> AsyncIterator[None]:
        """Adds the meter to the caller, and sets the rate-limit headers. Raises AccountsError (401, 429, 503)."""
        caller = caller_of(request)
        if caller.identity is None:
            yield
            return
        meter = Meter(caller.identity, caller.secret)
        admitted = False
        self._gate.register(meter)
        try:
            admission = await self._gate.admit(meter)
            admitted = admission.refusal is None
            request.state.headers = rate_headers(admission.rates)
            if admission.refusal is not None:
                raise AccountsError.of(admission.refusal)
            meter.check()
            request.state.caller = replace(caller, meter=meter, grants=self._gate.grants)
            yield
        finally:
            if not meter.is_detached:
                self._gate.unregister(meter, admitted=admitted)


def rate_headers(rates: RateState) -> dict[str, str]:
    """Returns `x-ratelimit-*` headers, named and formatted as OpenAI's."""
    headers = {}
    if rates.limit_requests is not None:
        headers["x-ratelimit-limit-requests"] = str(rates.limit_requests)
        headers["x-ratelimit-remaining-requests"] = str(rates.remaining_requests)
        headers["x-ratelimit-reset-requests"] = _duration(rates.reset_requests_s)
    if rates.limit_tokens is not None:
        headers["x-ratelimit-limit-tokens"] = str(rates.limit_tokens)
        headers["x-ratelimit-remaining-tokens"] = str(rates.remaining_tokens)
        headers["x-ratelimit-reset-tokens"] = _duration(rates.reset_tokens_s)
    return headers


def _duration(seconds: float) -> str:
    """Formats a duration as Go does: 6m0s, 1.5s, 20ms."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest_s = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest_s:.3f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + shown
