"""`/` and `/c/{conversation}`: serves the chat's web page to those who may have it. Knows nothing of its content."""

import re
from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from app.interface.http.paths import hint_of
from app.interface.request import errors
from app.interface.routes.pages import PageFiles

_CONVERSATION = re.compile(r"\w{1,80}", re.ASCII)


class ChatPage:
    """The routes. With accounts only users get the web page, and guests if they are served."""

    def __init__(self, files: PageFiles, must_log_in: Callable[[Request], Awaitable[bool]] | None) -> None:
        """must_log_in: whether the sender must log in first; None: there are no accounts."""
        self._files = files
        self._must_log_in = must_log_in

    async def chat(self, request: Request) -> Response:
        """`GET /`."""
        return await self._answer(request, "/login")

    async def conversation(self, request: Request, name: str) -> Response:
        """`GET /c/{name}`. Raises ApiError (404)."""
        if not _CONVERSATION.fullmatch(name):
            raise errors.no_such_route(request.method, request.url.path, hint_of(request))
        return await self._answer(request, f"/login?next=/c/{name}")

    async def _answer(self, request: Request, login: str) -> Response:
        if self._must_log_in is not None and await self._must_log_in(request):
            return RedirectResponse(login, 303, {"Cache-Control": "no-store"})
        return self._files.chat(request, has_accounts=self._must_log_in is not None)
