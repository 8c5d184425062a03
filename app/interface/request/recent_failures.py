"""The last failed requests, for the operator: which, when and how, without texts.

It keeps ids, declared routes, statuses and codes, all of them the service's own words: no path, message, field name or
header that a client chose. It is bounded, in memory only, and of one ingress.
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
"""The limit for each kind: refusals (4xx), and failures of the service (5xx, and streams that broke off). So a client
that sends only wrong requests does not evict the other kind."""
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
    """The path with the names of variables, not their values; "any": it was refused before routing."""
    status: int
    """For a stream that broke off, the status it would have had before the first event."""
    code: str | None
    is_stream: bool
    """Whether the answer had begun, with status 200."""
    user_id: str | None
    """None: nobody has logged in, or there are no accounts."""
    credential: str | None
    """The id of the user's API key or session, which is not secret."""


class RecentFailures:
    """The newest failures of one ingress. Used by one event loop."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._refusals: deque[FailedRequest] = deque(maxlen=MOST_FAILURES)
        self._failures: deque[FailedRequest] = deque(maxlen=MOST_FAILURES)

    def add(self, request: Request, error: ApiError, *, route: str | None = None, is_stream: bool = False) -> None:
        """Adds a failure. route: if it is not the request's own."""
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
        """Returns all kept failures, newest first."""
        return sorted((*self._refusals, *self._failures), key=lambda failed: failed.at, reverse=True)


def request_id_of(request: Request) -> str:
    """Returns the request's id, always the same: in the log, in messages and among the failures.

    Serve sets it, and returns it in a header; a client's text is replaced by a new id.
    """
    known: str | None = getattr(request.state, "request_id", None)
    if known is None:
        given = request.headers.get(REQUEST_ID_HEADER, "")
        known = request.state.request_id = given if _UUID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
    return known
