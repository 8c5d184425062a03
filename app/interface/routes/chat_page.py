"""`/` and `/c/{conversation}`: the chat page, and who gets it. Knows nothing of what is in it."""

import re

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from app.interface import errors
from app.interface.accounts.checks import SESSION_COOKIE
from app.interface.accounts.gate import AccountsGate
from app.interface.paths import hint_of
from app.interface.routes.pages import PageFiles
from app.messages.accounts import AccountsError

_CONVERSATION = re.compile(r"\w{1,80}", re.ASCII)


class ChatPage:
    """The routes. With accounts only users get the page, or guests where there are any."""

    def __init__(self, files: PageFiles, accounts: AccountsGate | None) -> None:
        self._files = files
        self._accounts = accounts

    async def chat(self, request: Request) -> Response:
        """`GET /`."""
        return await self._answer(request, "/login")

    async def conversation(self, request: Request, name: str) -> Response:
        """`GET /c/{name}`. Raises ApiError (404)."""
        if not _CONVERSATION.fullmatch(name):
            raise errors.no_such_route(request.method, request.url.path, hint_of(request))
        return await self._answer(request, f"/login?next=/c/{name}")

    async def _answer(self, request: Request, login: str) -> Response:
        if await self._must_log_in(request):
            return RedirectResponse(login, 303, {"Cache-Control": "no-store"})
        return self._files.chat(request, has_accounts=self._accounts is not None)

    async def _must_log_in(self, request: Request) -> bool:
        if self._accounts is None or self._accounts.guests:
            return False
        try:
            identity = await self._accounts.identify(request.cookies.get(SESSION_COOKIE, ""))
        except AccountsError as error:
            return error.refusal.code in errors.NOT_WHO_THEY_WERE
        return identity.must_choose_password
