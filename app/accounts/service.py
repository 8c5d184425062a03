"""The accounts as ingresses call them: a Serve deployment of one replica (`app.deploy`) that alone owns the database.

Methods return a Refusal instead of raising, since Serve logs exceptions. Every method verifies the credential it is
given; an ingress is never trusted to have done so.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.accounts.accounts import Accounts
from app.accounts.admission import Admissions, LoginFailures
from app.accounts.batch_secrets import Seen
from app.accounts.credential_service import CredentialService
from app.accounts.database_calls import database_calls
from app.accounts.turns import Turns
from app.core_files import leave_no_core_files
from app.messages.accounts import (
    Admission,
    LimitsUsed,
    Refusal,
    Revocations,
    Role,
    UsageRow,
    UserInfo,
    UserLimits,
)
from app.messages.batches import ClaimedBatch
from app.messages.stored import StoredConversation
from app.settings.accounts import AccountsSettings

logger = logging.getLogger(__name__)

_WRITE_PERIOD_S = 2.0
_SWEEP_PERIOD_S = 3600.0
_POLL_S = 10.0
"""How long `revocations` and `claim_batches` wait for news."""
_LOST_AFTER_S = 60.0
"""An ingress that has not asked for revocations for this long counts as ended."""
_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Remembered:
    """In-memory state that is handed to the next owner of the database. Times are of this machine's monotonic clock."""

    admissions: Admissions
    failures: LoginFailures | None
    turns: Turns
    seen: dict[str, float]
    known_after_s: float | None
    secrets: Seen | None = None
    """None: an older version has handed over."""


class AccountsService(CredentialService):
    """The methods do what `app.messages.accounts.AccountsClient`, and the stores of `app.messages`, say."""

    _is_closed = True  # until the constructor is done: Python may call __del__ even if it fails

    def __init__(
        self,
        settings: AccountsSettings,
        open_accounts: Callable[[AccountsSettings], Accounts] = Accounts.open,
        *,
        before: Remembered | None = None,
        known_after_s: float = _POLL_S + _SETTLE_S,
    ) -> None:
        """before: the previous owner's state. known_after_s: see `_known_after_s`, if there is no previous owner.

        Raises SettingsError if the key can't be read, or the database can't be opened or belongs to another key.
        """
        leave_no_core_files()
        super().__init__(open_accounts(settings))
        if before is None:
            before = Remembered(Admissions(), None, self._accounts.turns, {}, time.monotonic() + known_after_s)
        self._accounts.turns.take_over(before.turns)
        if (secrets := getattr(before, "secrets", None)) is not None:  # an older version's has no such field
            self._accounts.stored_batches.secrets.take_over(secrets)
        self._calls = database_calls(self._accounts)
        self._admissions = before.admissions
        self._failures = LoginFailures(settings.login_failures, before.failures)
        self._seen = dict(before.seen)
        """The monotonic time at which each ingress last asked for revocations."""
        self._ticking: asyncio.Task[None] | None = None
        self._known_after_s = before.known_after_s
        """When every living ingress has asked for revocations; None once the dead ones' responses are closed."""
        self._next_sweep_s = 0.0
        """The monotonic time at which old responses are deleted next."""
        self._is_closed = False

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Answers a call of an ingress, whose arguments and result are as the protocols of `app.messages` say."""
        work = self._calls.get(method)
        if work is None:
            return await getattr(self, method)(*arguments, **named)
        return await self._answer(lambda: work(*arguments, **named))

    # --- requests

    async def admit(self, ingress: str, secret: str, in_batch: bool = False) -> Admission | Refusal:
        def admitted() -> Admission:
            identity = self._accounts.logins.identify(secret)
            self._accounts.stored_batches.secrets.see(identity.user_id, secret)
            used = 0
            if identity.limits.tokens_per_day is not None:
                used = self._accounts.usage.tokens_today(identity.user_id)
            return self._admissions.admit(ingress, identity, used, self._accounts.store.now(), in_batch=in_batch)

        def given_back(admission: Admission) -> None:
            if admission.refusal is None and not in_batch:
                self._admissions.release(ingress, admission.identity.user_id)

        return await self._answer(admitted, undo=given_back)

    async def done(self, ingress: str, row: UsageRow, in_batch: bool = False) -> None:
        def counted() -> None:
            if not in_batch:
                self._admissions.release(ingress, row.user_id)
            self._accounts.usage.add(row)

        await self._in_database(counted)

    async def revocations(self, ingress: str, instance: str, position: int) -> Revocations:
        self._seen[ingress] = time.monotonic()
        self._start_ticking()
        changes = self._accounts.store.changes
        give_up_s = time.monotonic() + _POLL_S
        while True:
            news, found = self._news, changes.since(instance, position)
            if found.subjects is None or found.subjects:
                return found
            try:
                await asyncio.wait_for(news.wait(), give_up_s - time.monotonic())
            except TimeoutError:
                return changes.since(instance, position)

    async def begin_turn(
        self, ingress: str, secret: str, conversation_id: str, response_id: str
    ) -> StoredConversation | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(
            lambda: stored.begin_turn(secret, ingress, conversation_id, response_id),
            undo=lambda begun: stored.end_turn(secret, conversation_id, begun.seq),
        )

    async def claim_batches(self, most: int) -> Sequence[ClaimedBatch] | Refusal:
        """Waits while there is no batch that could run, so that idle ingresses ask seldom."""
        batches, give_up_s = self._accounts.stored_batches, time.monotonic() + _POLL_S
        while not batches.secrets.users():
            try:
                await asyncio.wait_for(self._news.wait(), give_up_s - time.monotonic())
            except TimeoutError:
                return []
        return await self._answer(lambda: batches.claim(most), undo=batches.give_back)

    async def limits_used(self, secret: str) -> LimitsUsed | Refusal:
        def counted() -> LimitsUsed:
            identity = self._accounts.logins.identify(secret)
            user_id = identity.user_id
            return LimitsUsed(
                requests_of_minute=self._admissions.of_minute(identity),
                tokens_of_day=self._accounts.usage.tokens_today(user_id),
                running=self._admissions.running(user_id),
                stored_bytes=self._accounts.stored_conversations.stored_bytes(user_id),
                most_stored_bytes=self._accounts.store.settings.stored_bytes_per_user,
            )

        return await self._answer(counted)

    # --- administration

    async def add_user(
        self, secret: str, name: str, password: str, role: Role, limits: UserLimits
    ) -> UserInfo | Refusal:
        new = await self._new_password_by_admin(secret, password)
        if isinstance(new, Refusal):
            return new
        return await self._answer(
            lambda: self._accounts.users.add(self._accounts.actor(secret), name, new, role, limits)
        )

    async def reset_password(self, secret: str, name: str, password: str) -> UserInfo | Refusal:
        new = await self._new_password_by_admin(secret, password)
        if isinstance(new, Refusal):
            return new
        return await self._answer(lambda: self._accounts.users.reset_password(self._accounts.actor(secret), name, new))

    # --- internals

    def _start_ticking(self) -> None:
        """Starts the periodic task; the constructor can't, since it runs outside the event loop."""
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())
            self._tasks.add(self._ticking)

    async def _tick(self) -> None:
        """Periodically writes usage, releases what dead ingresses held, and deletes what is too old."""
        while not self._is_closed:
            await asyncio.sleep(_WRITE_PERIOD_S)
            lost_s = time.monotonic() - _LOST_AFTER_S
            lost = [name for name, seen_s in self._seen.items() if seen_s < lost_s]
            for ingress in lost:
                del self._seen[ingress]
                self._admissions.ingress_lost(ingress)
            try:
                await self._in_database(partial(self._tidy, lost, tuple(self._seen)))
                for stored in (self._accounts.stored_files, self._accounts.stored_collections):
                    while await self._in_database(stored.destroy_some):
                        pass  # other calls come between
            except Exception as error:  # a full disk, for example: the next round tries again
                logger.error("the accounts were not tidied: %s", type(error).__qualname__)

    def _tidy(self, lost: Sequence[str], living: Sequence[str]) -> None:
        for ingress in lost:
            self._accounts.turns.ingress_lost(ingress)
            self._accounts.stored_responses.ingress_lost(ingress)
        if self._known_after_s is not None and self._known_after_s <= time.monotonic():
            self._accounts.stored_responses.other_ingresses_lost(living)
            self._known_after_s = None
        self._accounts.usage.write()
        self._accounts.stored_conversations.destroy_deleted()
        if self._next_sweep_s <= time.monotonic():
            self._accounts.stored_responses.delete_old()
            self._accounts.stored_batches.delete_old()
            self._accounts.stored_files.delete_old()
            self._accounts.store.forget_addresses()
            self._next_sweep_s = time.monotonic() + _SWEEP_PERIOD_S

    async def sealed_root(self) -> bytes:
        """Returns the sealed root key, with which another process can check its KEK."""
        return await self._in_database(self._accounts.store.sealed_root)

    async def hand_over(self) -> Remembered:
        """Closes the service and returns the state for the next owner. No method may be called afterwards."""
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.close)
        return Remembered(
            self._admissions,
            self._failures,
            self._accounts.turns,
            self._seen,
            self._known_after_s,
            self._accounts.stored_batches.secrets.seen,
        )

    def close(self) -> None:
        """Writes pending changes and releases the database. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._database.submit(self._accounts.close).result()
            finally:
                self._database.shutdown()
                self._passwords.shutdown()

    def __del__(self) -> None:
        """Serve calls this when it stops the replica."""
        self.close()
