"""Permission to use saved KV pages, derived from the user and the conversation of a request."""

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import replace

from app.interface.request.observers import Permit
from app.messages.accounts import AccountsClient, AccountsError, ConversationKey, Identity
from app.messages.memory import MemoryGrant
from app.messages.requests import GenerateRequest

logger = logging.getLogger(__name__)

_MOST_KEYS = 10_000


class Grants:
    """Grants users' requests access to their saved KV pages. Caches conversation keys as long as identities."""

    def __init__(self, accounts: AccountsClient, *, revocation_s: float) -> None:
        self._accounts = accounts
        self._revocation_s = revocation_s
        self._keys: dict[tuple[str, str | None], tuple[ConversationKey, float]] = {}
        """Maps user and conversation to the key and the monotonic time until which it is cached."""
        self._drops = 0

    def permit(self, identity: Identity, secret: str, conversation: str | None, shared_tokens: int) -> Permit:
        """Returns a function that adds access to a conversation's KV pages to a worker request.

        conversation: its name; None: the default one. shared_tokens: of system prompt, tools and files at the start of
        each prompt. secret: the credential of `identity`. If the accounts do not return the key, the request runs
        without saved KV pages; if they refuse the credential, it raises AccountsError.
        """
        grant: asyncio.Task[MemoryGrant | None] | None = None

        async def with_grant(request: GenerateRequest) -> GenerateRequest:
            nonlocal grant
            if grant is None:  # once for all choices of a request
                grant = asyncio.create_task(self._grant(identity, secret, conversation, shared_tokens))
            return replace(request, memory=await asyncio.shield(grant))

        return with_grant

    def drop(self, users: Collection[str] | None) -> None:
        """Drops the cached keys of these users; None: of all."""
        self._drops += 1
        if users is None:
            self._keys.clear()
        for kept in [kept for kept in self._keys if kept[0] in (users or ())]:
            del self._keys[kept]

    async def _grant(
        self, identity: Identity, secret: str, conversation: str | None, shared_tokens: int
    ) -> MemoryGrant | None:
        try:
            key = await self._key(identity.user_id, secret, conversation)
        except Exception as error:
            if isinstance(error, AccountsError) and error.refusal.code != "service_unavailable":
                raise
            logger.warning("a request has no saved pages, as there is no key: %s", type(error).__qualname__)
            return None
        return memory_grant(identity, key, shared_tokens=shared_tokens, save=True)

    async def _key(self, user_id: str, secret: str, conversation: str | None) -> ConversationKey:
        key, until_s = self._keys.get((user_id, conversation), (None, 0.0))
        if key is not None and time.monotonic() < until_s:
            return key
        asked_s, drops = time.monotonic(), self._drops
        key = await self._accounts.conversation_key(secret, conversation)
        if drops == self._drops:  # otherwise the key may have been forgotten meanwhile
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            self._keys[user_id, conversation] = key, asked_s + self._revocation_s
        return key


def memory_grant(identity: Identity, conversation: ConversationKey, *, shared_tokens: int, save: bool) -> MemoryGrant:
    """identity and conversation: of the same credential, from the accounts.

    shared_tokens: of system prompt, tools and files at the start of the prompt. save: whether new KV pages may be
    saved; a user whose limit is 0 bytes saves none.
    """
    pages = identity.pages
    return MemoryGrant(
        owner=pages.owner,
        names_key=pages.names_key,
        conversation_key=conversation.key,
        shared_key=pages.shared_key,
        conversation_key_id=conversation.key_id,
        shared_key_id=pages.shared_key_id,
        shared_tokens=shared_tokens,
        save=save and identity.limits.memory_bytes != 0,
        quota_bytes=identity.limits.memory_bytes,
    )
