"""`redoubt playground`: serves the web page in a process of its own, by default for browsers on this machine."""

import os
import socket
from contextlib import suppress

# Must be set before Gradio is imported, which otherwise contacts its makers' hosts.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.playground.page import build, theme
from app.playground.service import PlaygroundService

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline'",  # Gradio's document has inline scripts
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


class PlaygroundError(Exception):
    """The playground can't be served; the message says why and what to do."""


class _Policy:
    """Adds a Content-Security-Policy to every response: a model's output can load nothing from other hosts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = _POLICY
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self._app(scope, receive, send_with_policy if scope["type"] == "http" else send)


def application(url: str, host: str) -> FastAPI:
    """Builds the ASGI application for the service at `url`, reachable as `host`, localhost or 127.0.0.1."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        app,
        build(PlaygroundService(url)),
        path="/",
        footer_links=[],
        run_history=False,
        theme=theme(),
        show_error=False,
        max_file_size=1,
        ssr_mode=False,
    )
    app.add_middleware(_Policy)
    # Against DNS rebinding.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", host])
    return app


def serve(url: str, host: str, port: int) -> None:
    """Serves until Ctrl-C. Raises PlaygroundError."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()  # before the address is told: who connects early waits
        except OSError as error:
            raise PlaygroundError(f"{host}:{port}: {error.strerror}; choose another --port.") from None
        app = application(url, host)
        print(f"The playground of {url} is at http://{host}:{listener.getsockname()[1]}", flush=True)
        # Server errors could quote prompts.
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=2)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
