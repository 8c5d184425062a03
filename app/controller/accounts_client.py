"""The ingress' client of the accounts, which calls `app.accounts.service.AccountsService`."""

from collections.abc import Sequence

from app.controller.batch_store import ServeBatchStore
from app.controller.collection_store import ServeCollectionStore
from app.controller.conversation_store import ServeConversationStore
from app.messages.accounts import (
    Admission,
    AuditPage,
    ChangedPassword,
    ConversationKey,
    Forgotten,
    Identity,
    KeyInfo,
    LimitsUsed,
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


class ServeAccounts(ServeConversationStore, ServeBatchStore, ServeCollectionStore):
    """Implements `app.messages.accounts.AccountsClient`, which documents the methods, over a Serve handle."""

    async def identify(self, secret: str) -> Identity:
        return await self._call(Identity, "identify", secret)

    async def admit(self, secret: str, *, in_batch: bool = False) -> Admission:
        return await self._call(Admission, "admit", self._ingress, secret, in_batch)

    async def done(self, row: UsageRow, *, in_batch: bool = False) -> None:
        await self._call(object, "done", self._ingress, row, in_batch)

    async def revocations(self, instance: str, position: int) -> Revocations:
        return await self._call(Revocations, "revocations", self._ingress, instance, position)

    async def login(self, name: str, password: str, address: str | None, device: str | None = None) -> Session:
        return await self._call(Session, "login", name, password, address, device)

    async def logout(self, secret: str, *, everywhere: bool) -> int:
        return await self._call(int, "logout", secret, everywhere)

    async def change_password(
        self, secret: str, password: str, new: str, recovery_code: str | None = None, lose_saved: bool = False
    ) -> ChangedPassword:
        return await self._call(ChangedPassword, "change_password", secret, password, new, recovery_code, lose_saved)

    async def new_recovery_code(self, secret: str, password: str) -> str:
        return await self._call(str, "new_recovery_code", secret, password)

    async def limits_used(self, secret: str) -> LimitsUsed:
        return await self._call(LimitsUsed, "limits_used", secret)

    async def sessions(self, secret: str) -> Sequence[SessionInfo]:
        return await self._call(list[SessionInfo], "sessions", secret)

    async def end_session(self, secret: str, session_id: str) -> None:
        await self._call(object, "end_session", secret, session_id)

    async def keys(self, secret: str) -> Sequence[KeyInfo]:
        return await self._call(list[KeyInfo], "keys", secret)

    async def add_key(self, secret: str, label: str, days: int | None) -> NewKey:
        return await self._call(NewKey, "add_key", secret, label, days)

    async def revoke_key(self, secret: str, key_id: str) -> None:
        await self._call(object, "revoke_key", secret, key_id)

    async def conversation_key(self, secret: str, name: str | None) -> ConversationKey:
        return await self._call(ConversationKey, "conversation_key", secret, name)

    async def forget(self, secret: str, name: str | None) -> Forgotten:
        return await self._call(Forgotten, "forget", secret, name)

    async def users(self, secret: str) -> Sequence[UserInfo]:
        return await self._call(list[UserInfo], "users", secret)

    async def add_user(self, secret: str, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo:
        return await self._call(UserInfo, "add_user", secret, name, password, role, limits)

    async def change_user(self, secret: str, name: str, change: UserChange) -> UserInfo:
        return await self._call(UserInfo, "change_user", secret, name, change)

    async def delete_user(self, secret: str, name: str) -> str:
        return await self._call(str, "delete_user", secret, name)

    async def reset_password(self, secret: str, name: str, password: str) -> UserInfo:
        return await self._call(UserInfo, "reset_password", secret, name, password)

    async def usage(self, secret: str, first_day: str, last_day: str) -> Sequence[UsageRow]:
        return await self._call(list[UsageRow], "usage", secret, first_day, last_day)

    async def usage_by_user(self, secret: str) -> Sequence[UserUsage]:
        return await self._call(list[UserUsage], "usage_by_user", secret)

    async def audit(self, secret: str, after: int, limit: int) -> AuditPage:
        return await self._call(AuditPage, "audit", secret, after, limit)
