"""Wraps every route: errors in the client's format, counted answers, and answers that arrive before the body was read.

It knows nothing of what the routes do. `places.py` limits how many requests are open, and for how long.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.interface.http.metrics import Metrics
from app.interface.http.paths import hint_of
from app.interface.request import errors
from app.interface.request.anthropic_errors import REQUEST_ID_HEADER as ANTHROPIC_REQUEST_ID
from app.interface.request.anthropic_errors import anthropic_error, speaks_anthropic
from app.interface.request.errors import ApiError
from app.interface.request.recent_failures import RecentFailures, request_id_of
from app.interface.request.record import record_of
from app.interface.request.streaming import ClientGoneError

_LONGEST_LINGER_S, _LONGEST_SILENCE_S = 10.0, 1.0
"""How long the rest of a body is read and discarded after the answer: in total, and without data. A client without a
key must not occupy the ingress for long."""
_MOST_LINGERING = 16
"""The limit of connections drained in this way; others are closed right after their answer."""


CLIENT_GONE = 499
"""The status by which proxies count a client that closed its connection before the answer."""


class Guarded(APIRoute):
    """A route whose failures are answered in the client's format and recorded, and whose answers are counted."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wraps FastAPI's handler."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            metrics: Metrics = request.app.state.metrics
            try:
                response = await answered(request)
            except asyncio.CancelledError:  # Serve cancels a request whose client has gone
                metrics.answered(request.method, self.path, CLIENT_GONE)
                raise
            metrics.answered(request.method, self.path, response.status_code)
            response.headers.update(getattr(request.state, "headers", {}))  # the rate limits of a user
            if speaks_anthropic(request):
                response.headers[ANTHROPIC_REQUEST_ID] = request_id_of(request)
            return response

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiError as error:
                return failed(request, error)
            except (ClientGoneError, ClientDisconnect):
                return Response(status_code=CLIENT_GONE)  # for the metrics; the client has gone
            except Exception as error:
                state = request.app.state
                return failed(request, errors.as_api_error(error, request_id_of(request), state.retry_after_s))

        def failed(request: Request, error: ApiError) -> Response:
            failures: RecentFailures = request.app.state.failures
            failures.add(request, error)
            record_of(request).failed(error)
            return error_response(request, error)

        return guarded


class LingeringClose:
    """Lets an answer arrive that is sent before the whole request was read (401, 413).

    Closing a connection with unread bytes of the client resets it. The reset discards an answer that the proxy or the
    client has not read yet (RFC 9112, section 9.6). So the end of the answer waits for the end of the body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lingering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on; the last message of an answer may be delayed."""
        if scope["type"] != "http" or not announces_a_body(scope):
            await self._app(scope, receive, send)
            return
        is_read = False

        async def watched() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_read or not is_last or self._lingering >= _MOST_LINGERING:
                await send(message)
                return
            await send({**message, "more_body": True})
            self._lingering += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LONGEST_LINGER_S):
                        while not is_read:
                            await asyncio.wait_for(watched(), _LONGEST_SILENCE_S)
            finally:
                self._lingering -= 1
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, watched, answer)


def announces_a_body(scope: Scope) -> bool:
    """Whether the request's headers announce a body."""
    return any(name in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in scope["headers"])


async def refuse(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    """Answers a request before it is routed, and counts it. For middlewares."""
    request = Request(scope)
    metrics: Metrics = request.app.state.metrics
    metrics.answered(request.method, "any", error.status)
    failures: RecentFailures = request.app.state.failures
    failures.add(request, error, route="any")
    record_of(request).failed(error)
    await error_response(request, error)(scope, receive, send)


async def http_error(request: Request, error: Exception) -> Response:
    """Answers a request that the web framework refuses, such as an unknown path."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(request, errors.no_such_route(request.method, request.url.path, hint_of(request)))
    return error_response(request, errors.from_framework(error.status_code, str(error.detail)))


def error_response(request: Request, error: ApiError) -> Response:
    """Returns the response for an error, in Anthropic's form to a client of its API."""
    if not speaks_anthropic(request):
        return Response(error.body(), error.status, error.headers, "application/json")
    request_id = request_id_of(request)
    headers = {**error.headers, ANTHROPIC_REQUEST_ID: request_id}
    return json_response(anthropic_error(error, request_id), error.status, headers)


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a JSON response."""
    return Response(orjson.dumps(value), status, headers, "application/json")
