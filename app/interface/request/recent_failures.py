"""The last requests that failed, for who operates the service: which, when and how, and never a text.

It keeps ids, routes as they are declared, statuses and codes, all of them the service's own words: no path, message,
field's name or header that a client chose. It is in memory only, of one ingress, and bounded.
"""

import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import Request

from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError

MOST_FAILURES = 100
"""Of each kind: refusals (4xx), and failures of the service (5xx, and streams that broke off). Whoever sends nothing
but wrong requests does not push the other kind out."""
REQUEST_ID_HEADER = "x-request-id"
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that was answered with an error, or a stream that ended with one."""

    at: float
    """Unix seconds."""
    request_id: str
    method: str
    route: str
    """Its path with the names of variables and not their values; "any": it was refused before that was known."""
    status: int
    """Of a stream that broke off, what it would have been before the first event."""
    code: str | None
    is_stream: bool
    """Whether the answer had begun, with status 200."""
    user_id: str | None
    """None: nobody has logged in, or there are no accounts."""
    credential: str | None
    """The id of the user's API key or session, which is no secret."""


class RecentFailures:
    """The newest of one ingress. Used by one event loop."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._refusals: deque[FailedRequest] = deque(maxlen=MOST_FAILURES)
        self._failures: deque[FailedRequest] = deque(maxlen=MOST_FAILURES)

    def add(self, request: Request, error: ApiError, *, route: str | None = None, is_stream: bool = False) -> None:
        """The request failed. route: where it is not the request's own."""
        caller = getattr(request.state, "caller", None)
        identity = caller.identity if isinstance(caller, Caller) else None
        failed = FailedRequest(
            at=self._now_s(),
            request_id=request_id_of(request),
            method=request.method,
            route=request.scope["route"].path if route is None else route,
            status=error.status,
            code=error.code,
            is_stream=is_stream,
            user_id=None if identity is None else identity.user_id,
            credential=None if identity is None else identity.credential,
        )
        (self._failures if is_stream or error.status >= 500 else self._refusals).append(failed)

    def newest_first(self) -> Sequence[FailedRequest]:
        """All that are kept."""
        return sorted((*self._refusals, *self._failures), key=lambda failed: failed.at, reverse=True)


def request_id_of(request: Request) -> str:
    """The request's id, always the same: in the log, in messages and among the failures.

    It is Serve's, which the answer has in its header too, or a new one: a client may have put any text there.
    """
    known: str | None = getattr(request.state, "request_id", None)
    if known is None:
        given = request.headers.get(REQUEST_ID_HEADER, "")
        known = request.state.request_id = given if _UUID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
    return known
