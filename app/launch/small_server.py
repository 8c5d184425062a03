"""A small HTTP server in a thread, for a node's own endpoints: bounded bodies, JSON errors, strict HTTP.

Knows no paths. Its clients may be hostile: headers, bodies, their time and the number of connections are bounded.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Mapping

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

_MOST_HEADER_BYTES = 16 << 10
_MOST_CONNECTIONS = 64
_BODY_TIMEOUT_S = 10.0
_KEEP_ALIVE_S = 5


class BodyError(RuntimeError):
    """The request's body is too long or too slow."""

    def __init__(self, response: JSONResponse) -> None:
        super().__init__()
        self.response = response


def error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Makes an error in the API's format."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status_code=status, headers={"Cache-Control": "no-store", **(headers or {})})


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Reads the request's whole body. Raises BodyError (413, 408)."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise BodyError(error(413, "too_large", f"The body is over {most_bytes} bytes."))
    except TimeoutError:
        raise BodyError(error(408, "timeout", f"The body did not come within {_BODY_TIMEOUT_S:g} s.")) from None
    return bytes(body)


class SmallServer:
    """Serves an application from construction until `close`."""

    def __init__(self, application: ASGIApp, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        """context: for TLS; None: plain HTTP. Raises OSError if it can't listen on the address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.port: int = self._socket.getsockname()[1]
        configuration = uvicorn.Config(
            application,
            # h11 passes a request's target as it is; httptools would make a path of an absolute one.
            http="h11",
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            ssl_context_factory=None if context is None else lambda _configuration, _default: context,
        )
        self._server = uvicorn.Server(configuration)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name=f"port-{self.port}", daemon=True
        )
        self._thread.start()

    def is_running(self) -> bool:
        """Whether the server has not ended by itself."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stops listening and ends its connections."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
