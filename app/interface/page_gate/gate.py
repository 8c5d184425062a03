"""The only way to Gradio: lets through the few routes that the page uses, and bounds what they hold.

All other routes of Gradio (uploads, files, its API, heartbeats) are unknown here. Gradio gets neither headers nor
bodies as they came, only what was checked. Gradio answers an `Origin` with CORS headers, and takes the
page's address from `X-Forwarded-*`: it sees neither. With accounts only users get the page, or guests, and
a session goes on with what the page asks. Knows nothing of `/v1`.
"""

import contextlib
from collections.abc import Iterable
from urllib.parse import parse_qs

import gradio as gr
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from app.interface import errors
from app.interface.accounts.checks import SESSION_COOKIE, check_origin
from app.interface.accounts.gate import AccountsGate
from app.interface.errors import ApiError
from app.interface.guard import error_response
from app.interface.page.conversation import SESSION_SCOPE
from app.interface.page_gate import calls
from app.interface.page_gate.events import Events
from app.interface.places import Places
from app.interface.reception import read_body
from app.interface.streaming import ClientGoneError
from app.messages.accounts import AccountsError

_FILES = frozenset({"/", "/favicon.ico", "/manifest.json", "/robots.txt", "/theme.css", "/gradio_api/app_id"})
_FOLDERS = ("/assets/", "/static/")
_STREAM = "/gradio_api/queue/data"
_JOIN, _RUN = "/gradio_api/queue/join", "/gradio_api/run/predict"
_CANCEL, _RESET = "/gradio_api/cancel", "/gradio_api/reset"
_HEADERS = frozenset(
    {b"accept", b"accept-encoding", b"accept-language", b"host", b"if-modified-since", b"if-none-match", b"range"}
)
"""Request headers that Gradio gets."""


class PageGate:
    """Gradio's ASGI application, bounded. The page may hold half of the ingress' places, its streams a quarter."""

    def __init__(
        self,
        gradio: ASGIApp,
        page: gr.Blocks,
        *,
        max_open_requests: int,
        max_body_bytes: int,
        retry_after_s: int,
        accounts: AccountsGate | None = None,
    ) -> None:
        self._gradio = gradio
        self._page = page
        self._accounts = accounts
        self._max_body_bytes = max_body_bytes
        self._retry_after_s = retry_after_s
        self._places = Places(max(1, max_open_requests // 2))
        self._events = Events(page._queue, max(1, max_open_requests // 4), retry_after_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers every request that no other route has taken."""
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        try:
            with self._places.held(self._retry_after_s, "requests of the page"):
                await self._answer(scope, receive, send)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
        except ClientGoneError:
            await Response(status_code=499)(scope, receive, send)  # the client has gone

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method in ("GET", "HEAD") and path == "/" and await self._must_log_in(Request(scope)):
            await RedirectResponse("/login", 303, {"Cache-Control": "no-store"})(scope, receive, send)
        elif method in ("GET", "HEAD") and (path in _FILES or path.startswith(_FOLDERS)):
            await self._gradio(_inner(scope, ()), _Body(receive), send)
        elif method == "GET" and path == _STREAM:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            session = calls.session(query.get("session_hash", [""])[0])
            with self._events.streaming(session):
                await self._gradio(_inner(scope, ()), _Body(receive), send)
        elif method == "POST" and path in (_JOIN, _RUN, _CANCEL, _RESET):
            user_session = self._session(Request(scope))
            raw = await read_body(Request(scope, receive), self._max_body_bytes)
            session, body = "", b""
            if path == _CANCEL:
                body = calls.cancel(raw)
            elif path == _RESET:
                body = calls.reset(raw)
            else:
                session, body = calls.call(self._page.fns, raw, queued=path == _JOIN)
            headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
            with self._events.joining(session) if path == _JOIN else contextlib.nullcontext():
                inner = {**_inner(scope, headers), SESSION_SCOPE: user_session}
                await self._gradio(inner, _Body(receive, body), send)
        else:
            raise errors.no_such_route(method, path)

    async def _must_log_in(self, request: Request) -> bool:
        if self._accounts is None or self._accounts.guests:
            return False
        try:
            await self._accounts.identify(request.cookies.get(SESSION_COOKIE, ""))
        except AccountsError as error:
            return error.refusal.code in errors.NOT_WHO_THEY_WERE
        return False

    def _session(self, request: Request) -> str | None:
        """The token of the session's cookie, if any. Raises ApiError (403) if another site's page may have sent it."""
        token = None if self._accounts is None else request.cookies.get(SESSION_COOKIE)
        if token is not None:
            check_origin(request)
        return token


def _inner(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> Scope:
    """The request as Gradio sees it."""
    kept = [(name, value) for name, value in scope["headers"] if name in _HEADERS]
    return {**scope, "scheme": "http", "headers": [*kept, *headers]}


class _Body:
    """ASGI's `receive` with this body. After it comes only the client's disconnect."""

    def __init__(self, receive: Receive, body: bytes = b"") -> None:
        self._receive = receive
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        """The body, once; after that waits until the client disconnects."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        with contextlib.suppress(ApiError, ClientGoneError):  # a body where none belongs
            while (await self._receive())["type"] != "http.disconnect":
                pass
        return {"type": "http.disconnect"}
