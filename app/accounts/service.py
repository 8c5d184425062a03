"""The accounts as ingresses call them: a Serve deployment of one replica (`app.deploy`) that alone owns the database.

Methods return a Refusal instead of raising, since Serve logs exceptions. One thread runs the database, another hashes
passwords. Every method verifies the credential it is given; an ingress is never trusted to have done so.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from app.accounts.accounts import Accounts
from app.accounts.admission import Admissions, LoginFailures
from app.accounts.batch_secrets import Seen
from app.accounts.batch_service import BatchService
from app.accounts.collection_service import CollectionService
from app.accounts.credentials import check_new_password, normalized_name, normalized_password
from app.accounts.passwords import Challenge, NewPassword, new_password
from app.accounts.stored_service import StoredService
from app.accounts.turns import Turns
from app.accounts.users import check_admin
from app.core_files import leave_no_core_files
from app.messages.accounts import (
    AccountsError,
    Admission,
    AuditPage,
    ChangedPassword,
    ConversationKey,
    Forgotten,
    Identity,
    KeyInfo,
    LimitsUsed,
    NewKey,
    Refusal,
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
from app.settings import AccountsSettings

logger = logging.getLogger(__name__)

MOST_WAITING_PASSWORDS = 16
"""The limit of concurrent logins and password changes; each takes most of a second of one thread. More are refused."""
_WRITE_PERIOD_S = 2.0
_SWEEP_PERIOD_S = 3600.0
_POLL_S = 10.0
"""How long `revocations` waits for changes."""
_LOST_AFTER_S = 60.0
"""An ingress that has not asked for revocations for this long counts as ended."""
_SETTLE_S = 5.0
_UNKNOWN = "unknown"

Result = TypeVar("Result")


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


class AccountsService(StoredService, BatchService, CollectionService):
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
        self._admissions = before.admissions
        self._failures = LoginFailures(settings.login_failures, before.failures)
        self._seen = dict(before.seen)
        """The monotonic time at which each ingress last asked for revocations."""
        self._passwords = ThreadPoolExecutor(1, "passwords")
        self._waiting_passwords = 0
        self._ticking: asyncio.Task[None] | None = None
        self._known_after_s = before.known_after_s
        """When every living ingress has asked for revocations; None once the dead ones' responses are closed."""
        self._next_sweep_s = 0.0
        """The monotonic time at which old responses are deleted next."""
        self._is_closed = False

    # --- requests

    async def identify(self, secret: str) -> Identity | Refusal:
        def identified() -> Identity:
            identity = self._accounts.logins.identify(secret, at_first=True)
            if not identity.must_choose_password:
                self._accounts.stored_batches.secrets.see(identity.user_id, secret)
            return identity

        return await self._answer(identified)

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

    # --- the user's own credentials and conversations

    async def login(
        self, name: str, password: str, address: str | None = None, device: str | None = None
    ) -> Session | Refusal:
        return await self._try_password(_tried(name), lambda: self._log_in(name, password, address, device))

    async def _log_in(self, name: str, password: str, address: str | None, device: str | None) -> Session | Refusal:
        challenge = await self._in_database(lambda: self._accounts.logins.challenge(name))
        stretched = await self._stretched(lambda: challenge.stretched(password))
        session = await self._answer(lambda: self._accounts.logins.log_in(challenge, stretched, address, device))
        if isinstance(session, Refusal):
            outcome = "expired" if session.code == "password_expired" else "refused"
            self._note_failure(challenge, lambda: self._accounts.logins.note_failure(challenge, address, outcome))
        return session

    async def logout(self, secret: str, everywhere: bool) -> int | Refusal:
        return await self._answer(lambda: self._accounts.logins.log_out(secret, everywhere=everywhere))

    async def change_password(
        self, secret: str, password: str, new: str, recovery_code: str | None = None, lose_saved: bool = False
    ) -> ChangedPassword | Refusal:
        """Wrong passwords count as failed logins."""
        identity = await self.identify(secret)
        if isinstance(identity, Refusal):
            return identity
        try:
            check_new_password(normalized_password(new), "new_password")
            if identity.must_choose_password and normalized_password(new) == normalized_password(password):
                message = "Choose another password than the one that you were given."
                raise AccountsError("invalid_value", message, param="new_password")
        except AccountsError as error:
            return error.refusal
        cost = self._accounts.store.password_cost

        async def changed(challenge: Challenge, stretched: bytes) -> ChangedPassword | Refusal:
            renewed = await self._stretched(lambda: new_password(new, cost))
            return await self._answer(
                lambda: self._accounts.logins.change_password(
                    secret, challenge, stretched, renewed, recovery_code, lose_saved=lose_saved
                )
            )

        return await self._with_password(secret, identity, password, "change_password", changed)

    async def new_recovery_code(self, secret: str, password: str) -> str | Refusal:
        """Wrong passwords count as failed logins."""
        identity = await self._answer(lambda: self._accounts.logins.identify(secret))
        if isinstance(identity, Refusal):
            return identity

        async def made(challenge: Challenge, stretched: bytes) -> str | Refusal:
            return await self._answer(lambda: self._accounts.logins.new_recovery_code(secret, challenge, stretched))

        return await self._with_password(secret, identity, password, "new_recovery_code", made)

    async def _with_password(
        self,
        secret: str,
        identity: Identity,
        password: str,
        action: str,
        work: Callable[[Challenge, bytes], Coroutine[Any, Any, Result | Refusal]],
    ) -> Result | Refusal:
        """Runs work for which a logged-in user must give the password again."""
        logins = self._accounts.logins

        async def tried() -> Result | Refusal:
            challenge = await self._in_database(lambda: logins.challenge_of(secret))
            stretched = await self._stretched(lambda: challenge.stretched(password))
            result = await work(challenge, stretched)
            if isinstance(result, Refusal) and result.code == "invalid_login":
                session = identity.credential
                self._note_failure(challenge, lambda: logins.note_failure(challenge, action=action, session=session))
            return result

        return await self._try_password(_tried(identity.name), tried)

    def _note_failure(self, challenge: Challenge, note: Callable[[], None]) -> None:
        subject = challenge.user_id or _UNKNOWN
        if self._failures.wait_s(subject) is None:  # guesses must not fill the audit
            self._failures.add(subject)
            self._later(note)  # after the answer, whose timing must not reveal whether the user exists

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

    async def sessions(self, secret: str) -> Sequence[SessionInfo] | Refusal:
        return await self._answer(lambda: self._accounts.logins.sessions(secret))

    async def end_session(self, secret: str, session_id: str) -> Refusal | None:
        return await self._answer(lambda: self._accounts.logins.end_session(secret, session_id))

    async def keys(self, secret: str) -> Sequence[KeyInfo] | Refusal:
        return await self._answer(lambda: self._accounts.logins.keys(secret))

    async def add_key(self, secret: str, label: str, days: int | None) -> NewKey | Refusal:
        return await self._answer(lambda: self._accounts.logins.add_key(secret, label, days))

    async def revoke_key(self, secret: str, key_id: str) -> Refusal | None:
        return await self._answer(lambda: self._accounts.logins.revoke_key(secret, key_id))

    async def conversation_key(self, secret: str, name: str | None) -> ConversationKey | Refusal:
        return await self._answer(lambda: self._accounts.conversations.key(secret, name))

    async def forget(self, secret: str, name: str | None) -> Forgotten | Refusal:
        return await self._answer(lambda: self._accounts.conversations.forget(secret, name))

    # --- administration

    async def users(self, secret: str) -> Sequence[UserInfo] | Refusal:
        return await self._answer(lambda: self._accounts.users.all(self._accounts.actor(secret)))

    async def add_user(
        self, secret: str, name: str, password: str, role: Role, limits: UserLimits
    ) -> UserInfo | Refusal:
        new = await self._new_password_by_admin(secret, password)
        if isinstance(new, Refusal):
            return new
        return await self._answer(
            lambda: self._accounts.users.add(self._accounts.actor(secret), name, new, role, limits)
        )

    async def change_user(self, secret: str, name: str, change: UserChange) -> UserInfo | Refusal:
        return await self._answer(lambda: self._accounts.users.change(self._accounts.actor(secret), name, change))

    async def delete_user(self, secret: str, name: str) -> str | Refusal:
        return await self._answer(lambda: self._accounts.users.delete(self._accounts.actor(secret), name))

    async def reset_password(self, secret: str, name: str, password: str) -> UserInfo | Refusal:
        new = await self._new_password_by_admin(secret, password)
        if isinstance(new, Refusal):
            return new
        return await self._answer(lambda: self._accounts.users.reset_password(self._accounts.actor(secret), name, new))

    async def usage(self, secret: str, first_day: str, last_day: str) -> Sequence[UsageRow] | Refusal:
        return await self._answer(lambda: self._accounts.usage.rows(self._accounts.actor(secret), first_day, last_day))

    async def usage_by_user(self, secret: str) -> Sequence[UserUsage] | Refusal:
        return await self._answer(lambda: self._accounts.usage.by_user(self._accounts.actor(secret)))

    async def audit(self, secret: str, after: int, limit: int) -> AuditPage | Refusal:
        return await self._answer(lambda: self._accounts.audit(self._accounts.actor(secret), after, limit))

    # --- internals

    async def _new_password_by_admin(self, secret: str, password: str) -> NewPassword | Refusal:
        """Hashes a password that an administrator sets for somebody; anybody else is refused."""
        refused = await self._answer(lambda: check_admin(self._accounts.actor(secret)))
        if refused is not None:
            return refused
        cost = self._accounts.store.password_cost
        return await self._try_password(None, lambda: self._stretched(lambda: new_password(password, cost)))

    async def _try_password(
        self, tried: str | None, work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result | Refusal:
        """Runs work that hashes passwords, unless too much of it is waiting.

        tried: the name whose password is tried, if any. The attempt counts as a failure until it succeeds; otherwise
        concurrent attempts would exceed the limit.
        """
        if tried is not None and (wait_s := self._failures.wait_s(tried)) is not None:
            return Refusal("too_many_logins", "Too many wrong passwords for this name.", retry_after_s=wait_s)
        if self._waiting_passwords >= MOST_WAITING_PASSWORDS:
            message = "Too many logins are in progress. Try again later."
            return Refusal("too_many_logins", message, retry_after_s=MOST_WAITING_PASSWORDS)
        if tried is not None:
            self._failures.add(tried)
        self._waiting_passwords += 1
        try:
            result = await work()
        except AccountsError as error:
            return error.refusal
        finally:
            self._waiting_passwords -= 1
        if tried is not None and not isinstance(result, Refusal):
            self._failures.clear(tried)
        return result

    async def _stretched(self, work: Callable[[], Result]) -> Result:
        """Hashes a password in the password thread."""
        return await asyncio.get_running_loop().run_in_executor(self._passwords, work)

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


def _tried(name: str) -> str:
    """Returns the key under which failed logins are counted, whatever the name's spelling."""
    try:
        return f"name {normalized_name(name)}"
    except AccountsError:
        return "no name"
