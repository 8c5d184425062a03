"""Credentials: verifies them, and creates and ends sessions, changes passwords. Knows no administrator."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection, Label, Row, delete, insert, select, update

from app.accounts import tables
from app.accounts.credentials import (
    Credential,
    has_session_prefix,
    new_session_token,
    normalized_name,
    parse_credential,
    session_id,
)
from app.accounts.first_logins import choose_key, set_recovery_code
from app.accounts.keys import SALT_BYTES, PasswordCost, UserKey, key_id, new_key
from app.accounts.passwords import PASSWORDS, Challenge, NewPassword, set_password, wrong_login
from app.accounts.store import Store
from app.messages.accounts import (
    AccountsError,
    ChangedPassword,
    Identity,
    PageKeys,
    Session,
    SessionInfo,
    UserLimits,
)
from app.sealing.records import SealError

CHOOSE_FIRST = "Choose a password of your own first: log in on the page /login, or with login in redoubt chat."
_SEEN_PERIOD_S = 60
"""A session's last use is written at most this often."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A user whose credential was verified, and the user's key."""

    identity: Identity
    key: UserKey = field(repr=False)
    credential: Credential
    seen: int | None
    """The written time of a session's last use; None for an API key."""


class Logins:
    """Verifies credentials by opening the user's key with them; no separate hash is stored."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- identity

    def identify(self, secret: str, *, at_first: bool = False) -> Identity:
        """Verifies a credential; `at_first` also allows users who must still choose a password.

        Raises AccountsError: `invalid_api_key`, `session_expired`, or `password_change_required`.
        """
        with self._store.transaction() as connection:
            known = self.authenticate(connection, secret, at_first=at_first)
        now_s = int(self._store.now())
        if known.seen is not None and known.seen + _SEEN_PERIOD_S <= now_s:
            session = tables.sessions.c.token_hash == known.credential.token_hash
            self._store.write_use(update(tables.sessions).where(session).values(seen=now_s))
        return known.identity

    def authenticate(self, connection: Connection, secret: str, *, at_first: bool = False) -> Authenticated:
        """Verifies an API key or session token within a transaction. Raises AccountsError as `identify` does.

        at_first: allow a user who must still choose a password, and whose key opens nothing.
        """
        credential = parse_credential(secret)
        row = None if credential is None else self._credential(connection, credential)
        if credential is not None and row is not None and row.state == "active":
            try:
                key = self._store.root.unwrap(row.wrapped_umk, credential.secret, row.user_id, credential.id)
                seen = row.seen if credential.is_session else None
                identity = self._identity(row, credential, key)
            except SealError:
                pass
            else:
                if identity.must_choose_password and not at_first:
                    raise AccountsError("password_change_required", CHOOSE_FIRST)
                return Authenticated(identity, key, credential, seen)
        if has_session_prefix(secret):
            raise AccountsError("session_expired", "The session has ended. Log in again.")
        raise AccountsError("invalid_api_key", "That API key is not valid here.")

    def _credential(self, connection: Connection, credential: Credential) -> Any:
        """Returns the credential's row, joined with its user's; None if there is none or it has expired."""
        now_s = int(self._store.now())
        table = tables.sessions if credential.is_session else tables.credentials
        wanted = (
            table.c.token_hash == credential.token_hash
            if credential.is_session
            else (table.c.id == credential.id) & (table.c.kind == "api_key")
        )
        users = tables.users.c
        of_user = (users.name_sealed, users.role, users.state, users.limits, users.wrapped_sk)
        wanted_columns = (*of_user, _has("first"), _has("recovery"))
        seen = (tables.sessions.c.seen,) if credential.is_session else ()
        found = select(table.c.user_id, table.c.wrapped_umk, table.c.expires, *seen, *wanted_columns)
        row = connection.execute(found.join_from(table, tables.users).where(wanted)).one_or_none()
        if row is None or (row.expires is not None and row.expires <= now_s):
            return None
        if credential.is_session and row.seen + self._store.settings.session_idle_s <= now_s:
            return None
        return row

    def _identity(self, row: Row[Any], credential: Credential, key: UserKey) -> Identity:
        root = self._store.root
        shared = new_key() if row.has_first else key.unseal(row.wrapped_sk, f"shared key of {row.user_id}")
        return Identity(
            user_id=row.user_id,
            name=root.unseal_name(row.name_sealed, row.user_id),
            role=row.role,
            credential=credential.id,
            kind="session" if credential.is_session else "api_key",
            expires=row.expires,
            limits=UserLimits(**orjson.loads(row.limits)).or_else(self._store.default_limits),
            pages=PageKeys(root.owner(row.user_id), key.names_key(), shared, key_id(shared)),
            texts_key=key.texts_key(),
            must_choose_password=row.has_first,
            can_recover=row.has_first and row.has_recovery,
        )

    # --- passwords and sessions

    def challenge(self, name: str) -> Challenge:
        """Returns the challenge for a name as it was typed; an unknown name gets a random one."""
        unknown = Challenge("", "", os.urandom(SALT_BYTES), self._store.password_cost, b"")
        try:
            normal = normalized_name(name)
        except AccountsError:
            return unknown
        with self._store.transaction() as connection:
            user = self._store.user_of_name(connection, normal)
            return unknown if user is None else self._challenge(connection, user.id)

    def challenge_of(self, secret: str) -> Challenge:
        """Returns the challenge for the user of a credential. Raises AccountsError as `identify` does."""
        with self._store.transaction() as connection:
            return self._challenge(connection, self.authenticate(connection, secret, at_first=True).identity.user_id)

    def _challenge(self, connection: Connection, user_id: str) -> Challenge:
        owned = (tables.credentials.c.user_id == user_id) & tables.credentials.c.kind.in_(PASSWORDS)
        row = connection.execute(select(tables.credentials).where(owned)).one()
        cost = PasswordCost(**orjson.loads(row.params))
        return Challenge(user_id, row.id, row.salt, cost, row.wrapped_umk, row.expires)

    def log_in(
        self, challenge: Challenge, stretched: bytes, address: str | None = None, device: str | None = None
    ) -> Session:
        """Creates a session. address: the client's, for the audit. device: for the user's list of sessions.

        Raises AccountsError `invalid_login` or `password_expired`.
        """
        store = self._store
        with store.transaction() as connection:
            key = self._opened(connection, challenge, stretched)
            user = connection.execute(
                select(tables.users).where(tables.users.c.id == challenge.user_id, tables.users.c.state == "active")
            ).one_or_none()
            if user is None:  # disabled in the meantime
                raise wrong_login()
            token = new_session_token()
            credential = parse_credential(token)
            assert credential is not None
            now_s = int(store.now())
            connection.execute(delete(tables.sessions).where(self._has_ended(now_s)))
            connection.execute(
                insert(tables.sessions).values(
                    token_hash=credential.token_hash,
                    user_id=user.id,
                    wrapped_umk=key.wrap(store.root, credential.secret, user.id, credential.id),
                    created=now_s,
                    seen=now_s,
                    expires=now_s + store.settings.session_max_s,
                    device_sealed=None if device is None else key.seal(device.encode(), _device_of(credential.id)),
                )
            )
            store.note(connection, user.id, "login", credential.id, address=address)
            return Session(token, self.authenticate(connection, token, at_first=True).identity)

    def note_failure(
        self,
        challenge: Challenge,
        address: str | None = None,
        outcome: str = "refused",
        *,
        action: str = "login",
        session: str = "",
    ) -> None:
        """Logs a refused password in the audit. session: the session in which it was given."""
        with self._store.transaction() as connection:
            self._store.note(connection, challenge.user_id or "unknown", action, session, outcome, address)

    def _has_ended(self, now_s: int) -> Any:
        idle = tables.sessions.c.seen + self._store.settings.session_idle_s
        return (tables.sessions.c.expires <= now_s) | (idle <= now_s)

    def _opened(self, connection: Connection, challenge: Challenge, stretched: bytes) -> UserKey:
        try:
            key = self._store.root.unwrap(challenge.wrapped_umk, stretched, challenge.user_id, challenge.credential_id)
        except SealError:
            raise wrong_login() from None
        current = select(tables.credentials.c.id).where(tables.credentials.c.id == challenge.credential_id)
        if connection.execute(current).one_or_none() is None:  # changed in the meantime
            raise wrong_login()
        if challenge.expires is not None and challenge.expires <= self._store.now():
            until = datetime.fromtimestamp(challenge.expires, UTC).date()
            message = (
                f"This password was for the first login, and held until {until}. Ask an administrator for another one."
            )
            raise AccountsError("password_expired", message)
        return key

    def log_out(self, secret: str, everywhere: bool) -> int:
        """Ends this session, or all of the user's; returns how many. An API key may only end all (`everywhere`)."""
        with self._store.transaction() as connection:
            known = self.authenticate(connection, secret, at_first=True)
            if everywhere:
                ended = end_sessions(self._store, connection, known.identity.user_id)
            elif known.credential.is_session:
                ended = end_sessions(self._store, connection, known.identity.user_id, only=known.credential)
            else:
                raise AccountsError(
                    "invalid_value", "An API key is no session: 'everywhere' ends the user's.", param="everywhere"
                )
            # Conversations whose deletion could still be undone are deleted for good.
            mine = tables.conversations.c.user_id == known.identity.user_id
            connection.execute(delete(tables.conversations).where(mine, tables.conversations.c.deleted.is_not(None)))
            self._store.note(connection, known.identity.user_id, "logout", known.identity.credential)
            return ended

    def sessions(self, secret: str) -> Sequence[SessionInfo]:
        """Returns the user's valid sessions, newest first."""
        with self._store.transaction() as connection:
            known = self.authenticate(connection, secret)
            mine = tables.sessions.c.user_id == known.identity.user_id
            holds = mine & ~self._has_ended(int(self._store.now()))
            found = select(tables.sessions).where(holds).order_by(tables.sessions.c.created.desc())
            return [
                SessionInfo(
                    session_id(row.token_hash),
                    row.created,
                    row.seen,
                    row.expires,
                    row.token_hash == known.credential.token_hash,
                    _device(known, row),
                )
                for row in connection.execute(found)
            ]

    def end_session(self, secret: str, wanted: str) -> None:
        """Ends one of the user's sessions. Raises AccountsError `not_found`."""
        with self._store.transaction() as connection:
            known = self.authenticate(connection, secret)
            mine = tables.sessions.c.user_id == known.identity.user_id
            hashes = connection.execute(select(tables.sessions.c.token_hash).where(mine)).scalars()
            found = next((each for each in hashes if session_id(each) == wanted), None)
            if found is None:
                raise AccountsError("not_found", "There is no such session.", param="id")
            connection.execute(delete(tables.sessions).where(tables.sessions.c.token_hash == found))
            self._store.note(connection, known.identity.user_id, "end_session", wanted)
        self._store.changes.add(wanted)

    def change_password(
        self,
        secret: str,
        challenge: Challenge,
        stretched: bytes,
        new: NewPassword,
        recovery_code: str | None = None,
        *,
        lose_saved: bool = False,
    ) -> ChangedPassword:
        """Changes the password and ends all other sessions of the user.

        recovery_code and lose_saved: for a user who must choose a password. Raises AccountsError `invalid_login`, and
        as `choose_key` does.
        """
        with self._store.transaction() as connection:
            known = self.authenticate(connection, secret, at_first=True)
            if known.identity.user_id != challenge.user_id:
                raise wrong_login()
            key, changed, outcome = self._opened(connection, challenge, stretched), ChangedPassword(), "ok"
            user_id = known.identity.user_id
            if known.identity.must_choose_password:
                key, changed = choose_key(
                    self._store, connection, user_id, known.credential, recovery_code, lose_saved=lose_saved
                )
                outcome = "memory_lost" if changed.memory_lost else "first"
            set_password(self._store, connection, user_id, key, new)
            end_sessions(self._store, connection, user_id, keep=known.credential)
            self._store.note(connection, user_id, "change_password", "", outcome)
            return changed

    def new_recovery_code(self, secret: str, challenge: Challenge, stretched: bytes) -> str:
        """Replaces the recovery code. Raises AccountsError `invalid_login`."""
        with self._store.transaction() as connection:
            known = self.authenticate(connection, secret)
            if known.identity.user_id != challenge.user_id:
                raise wrong_login()
            key = self._opened(connection, challenge, stretched)
            code = set_recovery_code(self._store, connection, challenge.user_id, key)
            self._store.note(connection, challenge.user_id, "new_recovery_code", known.identity.credential)
            return code


def _has(kind: str) -> Label[bool]:
    """Whether the user of a row has a credential of that kind."""
    other = tables.credentials.alias(kind)
    owned = (other.c.user_id == tables.users.c.id) & (other.c.kind == kind)
    return select(other.c.id).where(owned).correlate(tables.users).exists().label(f"has_{kind}")


def _device_of(session: str) -> str:
    return f"device of session {session}"


def _device(known: Authenticated, row: Row[Any]) -> str | None:
    """Opens the device of a session's row; None if it is unknown, or from before a reset, whose key is gone."""
    if row.device_sealed is None:
        return None
    try:
        return known.key.unseal(row.device_sealed, _device_of(session_id(row.token_hash))).decode()
    except SealError:
        return None


def end_sessions(
    store: Store,
    connection: Connection,
    user_id: str,
    *,
    only: Credential | None = None,
    keep: Credential | None = None,
) -> int:
    """Ends a user's sessions: all, `only` one, or all but `keep`. Returns how many."""
    where = [tables.sessions.c.user_id == user_id]
    if only is not None:
        where.append(tables.sessions.c.token_hash == only.token_hash)
    if keep is not None:
        where.append(tables.sessions.c.token_hash != keep.token_hash)
    ended = connection.execute(delete(tables.sessions).where(*where)).rowcount
    store.changes.add(user_id if only is None else only.id)
    return ended
