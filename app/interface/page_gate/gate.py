"""The only way to Gradio: lets through the few files that the page is made of, and puts the chat surface into it.

All other routes of Gradio (calls, queue, uploads, files, its API, heartbeats) are unknown here. Gradio gets neither
bodies nor headers as they came. It answers an `Origin` with CORS headers, and takes the page's address from
`X-Forwarded-*`: it sees neither. With accounts only users get the page, or guests. Knows nothing of `/v1`.
"""

import contextlib
import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from app.interface import errors
from app.interface.accounts.checks import SESSION_COOKIE
from app.interface.accounts.gate import AccountsGate
from app.interface.errors import ApiError
from app.interface.guard import error_response
from app.interface.page_gate.shell import policy, with_surface
from app.interface.paths import hint_of
from app.interface.places import Places
from app.interface.routes.pages import NOT_BUILT, Built
from app.interface.streaming import ClientGoneError
from app.messages.accounts import AccountsError

_FILES = frozenset({"/favicon.ico", "/manifest.json", "/robots.txt", "/theme.css", "/gradio_api/app_id"})
_FOLDERS = ("/assets/", "/static/")
_CONVERSATION = re.compile(r"/c/(\w{1,80})", re.ASCII)
_NAMED = re.compile(rb"c=(\w{1,80})")
_HEADERS = frozenset({b"accept", b"accept-language", b"host", b"if-modified-since", b"if-none-match", b"range"})
"""Request headers that Gradio gets."""


class PageGate:
    """Gradio's ASGI application, bounded. The page may hold half of the ingress' places."""

    def __init__(
        self,
        gradio: ASGIApp,
        surface: Built | None,
        *,
        max_open_requests: int,
        retry_after_s: int,
        accounts: AccountsGate | None = None,
    ) -> None:
        """surface: None if it was not built; `/` then says so (503)."""
        self._gradio = gradio
        self._surface = surface
        self._accounts = accounts
        self._retry_after_s = retry_after_s
        self._places = Places(max(1, max_open_requests // 2))

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
        if method not in ("GET", "HEAD"):
            raise _unknown(scope)
        if named := _CONVERSATION.fullmatch(path):
            # Gradio's document belongs to `/`; the surface takes the address of the conversation again.
            address = f"/?c={named[1]}"
            await RedirectResponse(address, 303, {"Cache-Control": "no-store"})(scope, receive, send)
        elif path == "/":
            await (await self._page(scope))(scope, receive, send)
        elif path in _FILES or path.startswith(_FOLDERS):
            await self._file(scope, receive, send)
        else:
            raise _unknown(scope)

    async def _file(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One of Gradio's; what Gradio says of one that is not there is not passed on. Raises ApiError (404)."""
        is_there = True

        async def found(message: Message) -> None:
            nonlocal is_there
            is_there = is_there and message.get("status", 200) < 400
            if is_there:
                await send(message)

        await self._gradio(_inner(scope), _NoBody(receive), found)
        if not is_there:
            raise _unknown(scope)

    async def _page(self, scope: Scope) -> Response:
        if await self._must_log_in(Request(scope)):
            named = _NAMED.fullmatch(scope["query_string"])
            address = f"/login?next=/c/{named[1].decode()}" if named else "/login"
            return RedirectResponse(address, 303, {"Cache-Control": "no-store"})
        if self._surface is None:
            return Response(NOT_BUILT + "\n", 503, media_type="text/plain")
        document = with_surface(
            await _document(self._gradio, scope),
            self._surface.scripts,
            self._surface.styles,
            has_accounts=self._accounts is not None,
        )
        headers = {
            "Content-Security-Policy": policy(document),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return Response(document, headers=headers, media_type="text/html")

    async def _must_log_in(self, request: Request) -> bool:
        if self._accounts is None or self._accounts.guests:
            return False
        try:
            identity = await self._accounts.identify(request.cookies.get(SESSION_COOKIE, ""))
        except AccountsError as error:
            return error.refusal.code in errors.NOT_WHO_THEY_WERE
        return identity.must_choose_password


def _unknown(scope: Scope) -> ApiError:
    return errors.no_such_route(scope["method"], scope["path"], hint_of(Request(scope)))


async def _document(gradio: ASGIApp, scope: Scope) -> bytes:
    """What Gradio answers for `/`. Raises ApiError (500) if that is no page."""
    status, parts = 0, []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def collect(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    # Without its query, which Gradio writes into the document.
    asked = {**_inner(scope), "method": "GET", "query_string": b""}
    asked["headers"] = [(name, value) for name, value in asked["headers"] if not name.startswith((b"if-", b"range"))]
    await gradio(asked, receive, collect)
    if status != 200:
        raise ApiError(500, "The page failed.", "server_error")
    return b"".join(parts)


def _inner(scope: Scope) -> Scope:
    """The request as Gradio sees it."""
    return {**scope, "scheme": "http", "headers": [(n, value) for n, value in scope["headers"] if n in _HEADERS]}


class _NoBody:
    """ASGI's `receive` without the request's body. After it comes only the client's disconnect."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_read = False

    async def __call__(self) -> Message:
        """An empty body, once; after that waits until the client disconnects."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        with contextlib.suppress(ApiError, ClientGoneError):  # a body where none belongs
            while (await self._receive())["type"] != "http.disconnect":
                pass
        return {"type": "http.disconnect"}
