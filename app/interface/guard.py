"""What stands around every route: the key, the body's limits, and failures in OpenAI's shape.

It knows nothing of what the routes do.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.interface import errors
from app.interface.errors import ApiError
from app.interface.metrics import Metrics
from app.interface.streaming import ClientGoneError

_LONGEST_LINGER_S, _LONGEST_SILENCE_S = 10.0, 1.0
"""How long what is left of a request's body is read, and thrown away, after its answer: in all, and without any coming.
Whoever has no key must not keep a place in the ingress for long."""


class Guarded(APIRoute):
    """A route whose every failure is an answer in OpenAI's shape, and whose answers are counted."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, guarded."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            response = await answered(request)
            metrics: Metrics = request.app.state.metrics
            metrics.answered(request.method, self.path, response.status_code)
            return response

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiError as error:
                return error_response(error)
            except (ClientGoneError, ClientDisconnect):
                return Response(status_code=499)  # nobody reads it
            except Exception as error:
                return error_response(
                    errors.as_api_error(error, f"req-{uuid.uuid4().hex}", request.app.state.retry_after_s)
                )

        return guarded


class LingeringClose:
    """Lets an answer that came before the whole request was read (401, 413) arrive.

    A connection that is closed with bytes of the client unread is reset, and a reset takes the answer with it where it
    has not been read yet (RFC 9112, section 9.6): in the proxy, or in a client that sends on. So the answer's end waits
    for the body's.
    """

    def __init__(self, app: ASGIApp) -> None:
        """An ASGI middleware."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on, an answer's last message perhaps later."""
        if scope["type"] != "http" or not _announces_a_body(scope):
            await self._app(scope, receive, send)
            return
        is_read = False

        async def watched() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            if is_read or message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_LINGER_S):
                    while not is_read:
                        await asyncio.wait_for(watched(), _LONGEST_SILENCE_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, watched, answer)


def _announces_a_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in scope["headers"])


async def http_error(_: Request, error: Exception) -> Response:
    """A path outside `/v1` that nobody answers."""
    assert isinstance(error, HTTPException)
    return error_response(ApiError(error.status_code, str(error.detail)))


def error_response(error: ApiError) -> Response:
    """The error as OpenAI writes it."""
    return Response(error.body(), error.status, error.headers, "application/json")


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON object."""
    return Response(orjson.dumps(value), status, headers, "application/json")
