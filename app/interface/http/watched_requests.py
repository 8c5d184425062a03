"""Times each request from its head to the answer's last byte, for metrics, access log and traces.

An ASGI middleware around the application. A line has ids, counts and times of the service's own making, and nothing
that a client wrote: no path, header, field or name.
"""

import asyncio
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.interface.http.guard import CLIENT_GONE, Guarded
from app.interface.http.metrics import METHODS, Metrics
from app.interface.request.access_log import AccessLog
from app.interface.request.callers import Caller
from app.interface.request.recent_failures import request_id_of
from app.interface.request.record import RequestRecord
from app.interface.request.traces import Traces

_GONE = "client_closed_request"
_ANONYMOUS = "anonymous"
_KEY_ID_DIGITS = 8
"""Enough to tell keys apart, and too few to find one."""


class WatchedRequests:
    """Times every request, also refused ones."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: AccessLog | None, traces: Traces | None) -> None:
        """log, traces: None if disabled."""
        self._app = app
        self._metrics = metrics
        self._log = log
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on unchanged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        is_watched = self._log is not None or self._traces is not None
        record = request.state.record = RequestRecord(is_logged=is_watched)
        came = datetime.now(UTC)
        status = 0
        ended_s: float | None = None
        is_gone = False

        async def watched_receive() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone = is_gone or (message["type"] == "http.disconnect" and ended_s is None)
            return message

        async def watched_send(message: Message) -> None:
            nonlocal status, ended_s
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                ended_s = perf_counter()
            await send(message)

        try:
            await self._app(scope, watched_receive, watched_send)
        except asyncio.CancelledError:  # Serve cancels a request whose client has gone
            is_gone = is_gone or ended_s is None
            raise
        finally:
            duration_s = (perf_counter() if ended_s is None else ended_s) - record.began_s
            status = status or (CLIENT_GONE if is_gone else 500)
            route = _route_of(scope)
            self._metrics.ended(route, status, duration_s)
            if is_watched:
                line = _line(request, record, came, route, status, duration_s, is_gone=is_gone)
                if self._log is not None:
                    self._log.write(line)
                if self._traces is not None:
                    self._traces.add(line, int(came.timestamp() * 1e9), request.headers)


def _line(
    request: Request,
    record: RequestRecord,
    came: datetime,
    route: str,
    status: int,
    duration_s: float,
    *,
    is_gone: bool,
) -> dict[str, Any]:
    first_token_s = record.first_token_s
    return {
        "time": came.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request_id": request_id_of(request),
        "method": request.method if request.method in METHODS else "other",
        "route": route,
        "status": status,
        "error": _GONE if is_gone else record.error,
        "duration_s": round(duration_s, 4),
        "caller": _caller_of(request),
        "model": record.model,
        "answer_id": record.answer_id,
        "stream": record.is_stream,
        "first_token_s": None if first_token_s is None else round(first_token_s, 4),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "finish_reason": None if is_gone or record.error is not None else record.finish_reason,
        "resumed": record.resumed,
    }


def _route_of(scope: Scope) -> str:
    """Returns the declared path, with variables' names; "any" if the request was not routed."""
    route = scope.get("route")
    return route.path if isinstance(route, Guarded) else "any"


def _caller_of(request: Request) -> str:
    """Returns the id of the user's key or session, or the first digits of the SHA-256 of a key from the key file."""
    caller = getattr(request.state, "caller", None)
    if not isinstance(caller, Caller):
        return _ANONYMOUS
    if caller.identity is not None:
        return caller.identity.credential
    return caller.tenant.hex()[:_KEY_ID_DIGITS] or _ANONYMOUS
