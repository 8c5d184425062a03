"""The part of the accounts service that knows users by passwords, sessions and keys. Methods return Refusals.

One thread hashes passwords: each takes most of a second.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from app.accounts.accounts import Accounts
from app.accounts.admission import LoginFailures
from app.accounts.answering import Answering
from app.accounts.credentials import check_new_password, normalized_name, normalized_password
from app.accounts.passwords import Challenge, NewPassword, new_password
from app.accounts.users import check_admin
from app.messages.accounts import (
    AccountsError,
    ChangedPassword,
    Identity,
    Refusal,
    Session,
)

MOST_WAITING_PASSWORDS = 16
"""The limit of concurrent logins and password changes; each takes most of a second of one thread. More are refused."""
_UNKNOWN = "unknown"

Result = TypeVar("Result")


class CredentialService(Answering):
    """The methods do what `app.messages.accounts.AccountsClient` says."""

    _failures: LoginFailures

    def __init__(self, accounts: Accounts) -> None:
        super().__init__(accounts)
        self._passwords = ThreadPoolExecutor(1, "passwords")
        self._waiting_passwords = 0

    async def identify(self, secret: str) -> Identity | Refusal:
        def identified() -> Identity:
            identity = self._accounts.logins.identify(secret, at_first=True)
            if not identity.must_choose_password:
                self._accounts.stored_batches.secrets.see(identity.user_id, secret)
            return identity

        return await self._answer(identified)

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


def _tried(name: str) -> str:
    """Returns the key under which failed logins are counted, whatever the name's spelling."""
    try:
        return f"name {normalized_name(name)}"
    except AccountsError:
        return "no name"
