"""What administrators do: add, list, change, disable, delete and reset users. They see nothing of what was said."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from sqlalchemy import Connection, Row, delete, func, insert, select, update

from app.accounts import tables
from app.accounts.credentials import new_id, new_key_id, new_recovery_code, normalized_name, recovery_secret
from app.accounts.keys import UserKey, new_key
from app.accounts.logins import NewPassword, end_sessions, set_password
from app.accounts.store import Actor, Store
from app.messages.accounts import AccountsError, NewUser, Role, UserChange, UserInfo, UserLimits
from app.sealing.records import SealError


class Users:
    """Every method takes who asks, and raises AccountsError (`admin_only`) for who is no administrator."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, actor: Actor) -> Sequence[UserInfo]:
        """In the order of their names."""
        check_admin(actor)
        with self._store.transaction() as connection:
            rows = connection.execute(select(tables.users)).all()
        return sorted((self._info(row) for row in rows), key=lambda user: user.name)

    def add(self, actor: Actor, name: str, password: NewPassword, role: Role, limits: UserLimits) -> NewUser:
        """Raises AccountsError: `conflict` if there is one of that name, `invalid_value`."""
        check_admin(actor)
        store, user_id, key, name = self._store, new_id(), UserKey.new(), normalized_name(name)
        with store.transaction() as connection:
            if store.user_of_name(connection, name) is not None:
                raise AccountsError("conflict", f"There is a user {name} already.")
            connection.execute(
                insert(tables.users).values(
                    id=user_id,
                    name_lookup=store.root.name_lookup(name),
                    name_sealed=store.root.seal_name(name, user_id),
                    role=role,
                    state="active",
                    limits=_written(limits),
                    wrapped_sk=new_shared_key(key, user_id),
                    created=int(store.now()),
                )
            )
            set_password(store, connection, user_id, key, password)
            code = self._set_recovery_code(connection, user_id, key)
            store.note(connection, actor.id, "add_user", user_id)
            return NewUser(self._info(self._user(connection, name)), code)

    def change(self, actor: Actor, name: str, change: UserChange) -> UserInfo:
        """Raises AccountsError: `not_found`; `conflict` if no active administrator would be left."""
        check_admin(actor)
        store = self._store
        values: dict[str, Any] = {}
        if change.role is not None:
            values["role"] = change.role
        if change.state is not None:
            values["state"] = change.state
        if change.limits is not None:
            values["limits"] = _written(change.limits)
        with store.transaction() as connection:
            user = self._user(connection, name)
            if values:
                connection.execute(update(tables.users).where(tables.users.c.id == user.id).values(**values))
                self._check_an_admin_is_left(connection, user)
                what = "disable_user" if change.state == "disabled" else "change_user"
                store.note(connection, actor.id, what, user.id)
            info = self._info(self._user(connection, name))
        store.changes.add(user.id)
        return info

    def delete(self, actor: Actor, name: str) -> str:
        """The folder of the pages that nobody can open any more. Raises AccountsError as `change` does."""
        check_admin(actor)
        store = self._store
        with store.transaction() as connection:
            user = self._user(connection, name)
            # First all that opens the user's key; on SQLite and Postgres alike the rest follows by itself.
            connection.execute(delete(tables.credentials).where(tables.credentials.c.user_id == user.id))
            connection.execute(delete(tables.users).where(tables.users.c.id == user.id))
            self._check_an_admin_is_left(connection, user)
            store.note(connection, actor.id, "delete_user", user.id)
        store.changes.add(user.id)
        return store.root.owner(user.id)

    def reset_password(self, actor: Actor, name: str, password: NewPassword, recovery_code: str | None) -> NewUser:
        """Sets a password and makes a new recovery code; all keys and sessions of the user end.

        With the recovery code what was saved stays; without it nobody can open that any more, and it is deleted.
        Raises AccountsError: `not_found`, `invalid_value` for a wrong code.
        """
        check_admin(actor)
        store = self._store
        with store.transaction() as connection:
            user = self._user(connection, name)
            if recovery_code is None:
                key = UserKey.new()
                for table in (tables.responses, tables.conversations):
                    connection.execute(delete(table).where(table.c.user_id == user.id))
                shared = new_shared_key(key, user.id)
                connection.execute(update(tables.users).where(tables.users.c.id == user.id).values(wrapped_sk=shared))
            else:
                key = self._recovered(connection, user.id, recovery_code)
            connection.execute(delete(tables.credentials).where(tables.credentials.c.user_id == user.id))
            set_password(store, connection, user.id, key, password)
            code = self._set_recovery_code(connection, user.id, key)
            end_sessions(store, connection, user.id)
            outcome = "memory_kept" if recovery_code is not None else "memory_lost"
            store.note(connection, actor.id, "reset_password", user.id, outcome)
        lost = None if recovery_code is not None else store.root.owner(user.id)
        return NewUser(self._info(user), code, memory_lost=recovery_code is None, lost_folder=lost)

    def _recovered(self, connection: Connection, user_id: str, code: str) -> UserKey:
        owned = (tables.credentials.c.user_id == user_id) & (tables.credentials.c.kind == "recovery")
        row = connection.execute(select(tables.credentials).where(owned)).one()
        try:
            return self._store.root.unwrap(row.wrapped_umk, recovery_secret(code), user_id, row.id)
        except SealError:
            raise AccountsError(
                "invalid_value", "That is not the user's recovery code.", param="recovery_code"
            ) from None

    def _set_recovery_code(self, connection: Connection, user_id: str, key: UserKey) -> str:
        code, credential_id, store = new_recovery_code(), new_key_id(), self._store
        connection.execute(
            insert(tables.credentials).values(
                id=credential_id,
                user_id=user_id,
                kind="recovery",
                wrapped_umk=key.wrap(store.root, recovery_secret(code), user_id, credential_id),
                created=int(store.now()),
            )
        )
        return code

    def _user(self, connection: Connection, name: str) -> Row[Any]:
        user = self._store.user_of_name(connection, normalized_name(name))
        if user is None:
            raise AccountsError("not_found", "There is no such user.")
        return user

    def _info(self, row: Row[Any]) -> UserInfo:
        name = self._store.root.unseal_name(row.name_sealed, row.id)
        return UserInfo(row.id, name, row.role, row.state, row.created, UserLimits(**orjson.loads(row.limits)))

    @staticmethod
    def _check_an_admin_is_left(connection: Connection, changed: Row[Any]) -> None:
        """changed: the user as it was. Raises AccountsError, which undoes the transaction."""
        if (changed.role, changed.state) != ("admin", "active"):
            return
        active = (tables.users.c.role == "admin") & (tables.users.c.state == "active")
        if not connection.execute(select(func.count()).select_from(tables.users).where(active)).scalar_one():
            raise AccountsError("conflict", "Nobody would be left who can administer: make another user admin first.")


def check_admin(actor: Actor) -> None:
    """Raises AccountsError: `admin_only`."""
    if actor.role != "admin":
        raise AccountsError("admin_only", "Only administrators may do that.")


def new_shared_key(key: UserKey, user_id: str) -> bytes:
    """A random SK, sealed under the user's key."""
    return key.seal(new_key(), f"shared key of {user_id}")


def _written(limits: UserLimits) -> str:
    return orjson.dumps({name: value for name, value in asdict(limits).items() if value is not None}).decode()
