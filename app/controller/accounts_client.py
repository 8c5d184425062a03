"""The ingress' way to the accounts: calls the methods of `app.accounts.service.AccountsService`."""

from collections.abc import Sequence

from app.controller.conversation_store import ServeConversationStore
from app.messages.accounts import (
    Admission,
    AuditPage,
    ChangedPassword,
    ConversationKey,
    Forgotten,
    Identity,
    KeyInfo,
    NewKey,
    Revocations,
    Role,
    Session,
    SessionInfo,
    UsageRow,
    UserChange,
    UserInfo,
    UserLimits,
    UserUsage,
)


class ServeAccounts(ServeConversationStore):
    """An `app.messages.accounts.AccountsClient` and a ConversationStore over a Serve handle."""

    async def identify(self, secret: str) -> Identity:
        """See AccountsClient; so do all that follow."""
        return await self._call(Identity, "identify", secret)

    async def admit(self, secret: str) -> Admission:
        """See AccountsClient."""
        return await self._call(Admission, "admit", self._ingress, secret)

    async def done(self, row: UsageRow) -> None:
        """See AccountsClient."""
        await self._call(object, "done", self._ingress, row)

    async def revocations(self, instance: str, position: int) -> Revocations:
        """See AccountsClient."""
        return await self._call(Revocations, "revocations", self._ingress, instance, position)

    async def login(self, name: str, password: str, address: str | None) -> Session:
        """See AccountsClient."""
        return await self._call(Session, "login", name, password, address)

    async def logout(self, secret: str, *, everywhere: bool) -> int:
        """See AccountsClient."""
        return await self._call(int, "logout", secret, everywhere)

    async def change_password(
        self, secret: str, password: str, new: str, recovery_code: str | None = None, lose_saved: bool = False
    ) -> ChangedPassword:
        """See AccountsClient."""
        return await self._call(ChangedPassword, "change_password", secret, password, new, recovery_code, lose_saved)

    async def new_recovery_code(self, secret: str, password: str) -> str:
        """See AccountsClient."""
        return await self._call(str, "new_recovery_code", secret, password)

    async def sessions(self, secret: str) -> Sequence[SessionInfo]:
        """See AccountsClient."""
        return await self._call(list[SessionInfo], "sessions", secret)

    async def end_session(self, secret: str, session_id: str) -> None:
        """See AccountsClient."""
        await self._call(object, "end_session", secret, session_id)

    async def keys(self, secret: str) -> Sequence[KeyInfo]:
        """See AccountsClient."""
        return await self._call(list[KeyInfo], "keys", secret)

    async def add_key(self, secret: str, label: str, days: int | None) -> NewKey:
        """See AccountsClient."""
        return await self._call(NewKey, "add_key", secret, label, days)

    async def revoke_key(self, secret: str, key_id: str) -> None:
        """See AccountsClient."""
        await self._call(object, "revoke_key", secret, key_id)

    async def conversation_key(self, secret: str, name: str | None) -> ConversationKey:
        """See AccountsClient."""
        return await self._call(ConversationKey, "conversation_key", secret, name)

    async def forget(self, secret: str, name: str | None) -> Forgotten:
        """See AccountsClient."""
        return await self._call(Forgotten, "forget", secret, name)

    async def users(self, secret: str) -> Sequence[UserInfo]:
        """See AccountsClient."""
        return await self._call(list[UserInfo], "users", secret)

    async def add_user(self, secret: str, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo:
        """See AccountsClient."""
        return await self._call(UserInfo, "add_user", secret, name, password, role, limits)

    async def change_user(self, secret: str, name: str, change: UserChange) -> UserInfo:
        """See AccountsClient."""
        return await self._call(UserInfo, "change_user", secret, name, change)

    async def delete_user(self, secret: str, name: str) -> str:
        """See AccountsClient."""
        return await self._call(str, "delete_user", secret, name)

    async def reset_password(self, secret: str, name: str, password: str) -> UserInfo:
        """See AccountsClient."""
        return await self._call(UserInfo, "reset_password", secret, name, password)

    async def usage(self, secret: str, first_day: str, last_day: str) -> Sequence[UsageRow]:
        """See AccountsClient."""
        return await self._call(list[UsageRow], "usage", secret, first_day, last_day)

    async def usage_by_user(self, secret: str) -> Sequence[UserUsage]:
        """See AccountsClient."""
        return await self._call(list[UserUsage], "usage_by_user", secret)

    async def audit(self, secret: str, after: int, limit: int) -> AuditPage:
        """See AccountsClient."""
        return await self._call(AuditPage, "audit", secret, after, limit)
