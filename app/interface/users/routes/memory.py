"""`/v1/memory`: users' own saved KV pages."""

from dataclasses import asdict

from fastapi import Request
from fastapi.responses import Response

from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.users.gate import AccountsGate
from app.interface.users.kv_pages import UserKvPages
from app.interface.users.routes.users import user_of
from app.interface.wire.memory import ForgottenMemory, MemoryUse, SavedMemory
from app.messages.accounts import Identity


class MemoryRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate, kv_pages: UserKvPages) -> None:
        self._gate = gate
        self._kv_pages = kv_pages

    async def use(self, request: Request) -> Response:
        """`GET /v1/memory`."""
        _, identity = user_of(request)
        use = await self._kv_pages.use(identity.pages.owner)
        own = identity.limits.memory_bytes
        quota = self._kv_pages.bytes_per_user if own is None else own
        return json_response(MemoryUse(quota_bytes=quota, **asdict(use)).model_dump())

    async def save(self, request: Request) -> Response:
        """`POST /v1/memory/save`. Raises ApiError (507) if a KV page could not be saved."""
        _, identity = user_of(request)
        saved = await self._kv_pages.save(identity.pages.owner)
        if saved.unsaved_pages:
            raise errors.memory_not_saved(saved.saved_pages, saved.unsaved_pages)
        return json_response(SavedMemory(**asdict(saved)).model_dump())

    async def forget(self, request: Request) -> Response:
        """`DELETE /v1/memory`: destroys one or all keys, then has all workers remove the KV pages of these keys.

        Raises ApiError (400) for an unknown parameter: a misspelled one must not forget everything.
        """
        caller, identity = user_of(request)
        names = request.query_params.getlist("conversation")
        if request.query_params.keys() - {"conversation"} or len(names) > 1:
            message = "The only parameter is 'conversation', once; without it everything is forgotten."
            raise errors.invalid(message, "conversation", "invalid_value")
        forgetting = self._forget(caller.secret, identity, names[0] if names else None)
        return json_response((await self._gate.to_the_end(forgetting)).model_dump())

    async def _forget(self, secret: str, identity: Identity, name: str | None) -> ForgottenMemory:
        forgotten = await self._gate.accounts.forget(secret, name)
        removed = await self._gate.forget_destroyed(identity, forgotten)
        return ForgottenMemory(conversations=forgotten.conversations, **asdict(removed))
