"""Limits on open requests and on the time that a request's body may take.

ASGI middlewares around the whole application. They know no routes but the probes, which are always admitted.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.interface.http.guard import announces_a_body, refuse
from app.interface.request import errors
from app.interface.request.streaming import ClientGoneError

RESERVED_PLACES = 32
"""Requests that Serve admits to an ingress on top of `max_ongoing_requests`: for probes, and for refusals, which are
short. Without them a full ingress could not answer 503."""

PROBES = frozenset({"/health", "/livez", "/readyz"})
"""The probes of load balancers and orchestrators, which must not take a full ingress for a dead one."""
_SCRAPES = 4
"""The limit of requests for `/metrics` while all places are taken, because then they are needed most."""

_QUICK_BODY_S = 0.5
"""A body that takes longer than this needs one of a limited number of places."""
_LONGEST_SILENCE_S = 15.0
"""The maximum time without data of a body."""
_SLOWEST_BYTES_PER_S, _GRACE_S = 256, 30.0
"""The minimum average rate of a body, after the first seconds."""


class Places:
    """A semaphore that refuses instead of waiting."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    @contextlib.contextmanager
    def held(self, retry_after_s: int, what: str) -> Iterator[None]:
        """Holds a place. Raises ApiError (503) if none is free. what: names what there are too many of."""
        self.acquire(retry_after_s, what)
        try:
            yield
        finally:
            self.taken -= 1

    def acquire(self, retry_after_s: int, what: str) -> None:
        """Takes a place, to be returned by `taken -= 1`. Raises ApiError (503)."""
        if self.taken >= self.limit:
            raise errors.unavailable(retry_after_s, f"Too many {what} are open. Try again later.")
        self.taken += 1


def is_probe(scope: Scope) -> bool:
    """Whether the HTTP request is a probe, which is always answered."""
    return scope["path"] in PROBES and scope["method"] in ("GET", "HEAD")


class OpenRequests:
    """Refuses (503) a request while all places are taken. Probes are not counted, and never refused."""

    def __init__(self, app: ASGIApp, places: Places, retry_after_s: int) -> None:
        self._app = app
        self._places = places
        self._scrapes = Places(_SCRAPES)
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it."""
        if scope["type"] != "http" or is_probe(scope):
            await self._app(scope, receive, send)
            return
        places = self._places
        if places.taken >= places.limit and scope["path"] == "/metrics":
            places = self._scrapes
        try:
            places.acquire(self._retry_after_s, "requests")
        except errors.ApiError as error:
            await refuse(scope, receive, send, error)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            places.taken -= 1


class BodyDeadline:
    """Limits the time of a body: then `receive` raises ApiError (408), or ClientGoneError without a client.

    A body may be slow as long as it progresses. Only `slow_limit` slow bodies are awaited at once; more are refused
    (503), so that half-sent requests can't occupy every place.
    """

    def __init__(self, app: ASGIApp, slow_limit: int, retry_after_s: int) -> None:
        self._app = app
        self._slow = Places(slow_limit)
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with a `receive` that has a deadline."""
        if scope["type"] != "http" or not announces_a_body(scope):
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._slow, self._retry_after_s)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.end()


class _Body:
    """One request's body as it arrives."""

    def __init__(self, receive: Receive, slow: Places, retry_after_s: int) -> None:
        self._receive = receive
        self._slow = slow
        self._retry_after_s = retry_after_s
        self._is_slow = self._is_read = False
        self._bytes = 0
        self._began_s = self._moved_s = -1.0

    async def receive(self) -> Message:
        """ASGI's `receive`. Raises ApiError (408, 503), or ClientGoneError if the client disconnects early."""
        if self._is_read:
            return await self._receive()
        now_s = asyncio.get_running_loop().time
        if self._began_s < 0:
            self._began_s = self._moved_s = now_s()
        message = await self._next()
        if message["type"] == "http.disconnect":
            self.end()
            raise ClientGoneError
        self._moved_s = now_s()
        self._bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._is_read = True
            self.end()
        return message

    async def _next(self) -> Message:
        loop = asyncio.get_running_loop()
        deadline_s = min(
            self._moved_s + _LONGEST_SILENCE_S, self._began_s + _GRACE_S + self._bytes / _SLOWEST_BYTES_PER_S
        )
        if not self._is_slow:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(deadline_s, self._began_s + _QUICK_BODY_S)):
                    return await self._receive()
            if loop.time() < deadline_s:
                self._slow.acquire(self._retry_after_s, "slow uploads")
                self._is_slow = True
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._receive()
        except TimeoutError:
            raise errors.body_too_slow() from None

    def end(self) -> None:
        """Returns the place, if it has one."""
        if self._is_slow:
            self._is_slow = False
            self._slow.taken -= 1
