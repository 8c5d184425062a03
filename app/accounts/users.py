"""What administrators do: add, list, change, disable, delete and reset users. No texts are visible here."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from app.accounts import tables
from app.accounts.credentials import new_id, normalized_name
from app.accounts.keys import UserKey
from app.accounts.logins import end_sessions
from app.accounts.passwords import NewPassword, set_password
from app.accounts.store import Actor, Store
from app.messages.accounts import AccountsError, Role, UserChange, UserInfo, UserLimits


class Users:
    """Every method raises AccountsError `admin_only` unless the actor is an administrator."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, actor: Actor) -> Sequence[UserInfo]:
        """Returns all users by name."""
        check_admin(actor)
        with self._store.transaction() as connection:
            rows = connection.execute(_users()).all()
        return sorted((self._info(row) for row in rows), key=lambda user: user.name)

    def add(self, actor: Actor, name: str, password: NewPassword, role: Role, limits: UserLimits) -> UserInfo:
        """password: for the first login. Raises AccountsError: `conflict` if the name is taken, `invalid_value`."""
        check_admin(actor)
        store, user_id, name = self._store, new_id(), normalized_name(name)
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
                    wrapped_sk=b"",  # none until the user chooses a password
                    created=int(store.now()),
                )
            )
            set_password(store, connection, user_id, UserKey.new(), password, kind="first")
            store.note(connection, actor.id, "add_user", user_id)
            return self._info(self._user(connection, name))

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
        """Returns the folder of KV pages that nobody can open any more. Raises AccountsError as `change` does."""
        check_admin(actor)
        store = self._store
        with store.transaction() as connection:
            user = self._user(connection, name)
            # Credentials open the user's key, so they go first; everything else is deleted by cascade.
            connection.execute(delete(tables.credentials).where(tables.credentials.c.user_id == user.id))
            connection.execute(delete(tables.users).where(tables.users.c.id == user.id))
            self._check_an_admin_is_left(connection, user)
            store.note(connection, actor.id, "delete_user", user.id)
        store.changes.add(user.id)
        return store.root.owner(user.id)

    def reset_password(self, actor: Actor, name: str, password: NewPassword) -> UserInfo:
        """Sets a password for the next login and ends all keys and sessions of the user.

        Saved data stays sealed; the user's recovery code opens it then. Raises AccountsError `not_found`.
        """
        check_admin(actor)
        store, credentials = self._store, tables.credentials.c
        with store.transaction() as connection:
            user = self._user(connection, name)
            mine = credentials.user_id == user.id
            connection.execute(delete(tables.credentials).where(mine, credentials.kind != "recovery"))
            set_password(store, connection, user.id, UserKey.new(), password, kind="first")
            end_sessions(store, connection, user.id)
            store.note(connection, actor.id, "reset_password", user.id)
            return self._info(self._user(connection, name))

    def _user(self, connection: Connection, name: str) -> Row[Any]:
        found = tables.users.c.name_lookup == self._store.root.name_lookup(normalized_name(name))
        user = connection.execute(_users().where(found)).one_or_none()
        if user is None:
            raise AccountsError("not_found", "There is no such user.")
        return user

    def _info(self, row: Row[Any]) -> UserInfo:
        name = self._store.root.unseal_name(row.name_sealed, row.id)
        limits = UserLimits(**orjson.loads(row.limits))
        return UserInfo(row.id, name, row.role, row.state, row.created, limits, row.first_password_expires)

    @staticmethod
    def _check_an_admin_is_left(connection: Connection, changed: Row[Any]) -> None:
        """Raises AccountsError, which rolls the transaction back. changed: the user before the change."""
        if (changed.role, changed.state) != ("admin", "active"):
            return
        active = (tables.users.c.role == "admin") & (tables.users.c.state == "active")
        if not connection.execute(select(func.count()).select_from(tables.users).where(active)).scalar_one():
            raise AccountsError("conflict", "Nobody would be left who can administer: make another user admin first.")


def check_admin(actor: Actor) -> None:
    """Raises AccountsError `admin_only`."""
    if actor.role != "admin":
        raise AccountsError("admin_only", "Only administrators may do that.")


def _users() -> Select[Any]:
    """Selects users, with when a password for the first login expires."""
    first = tables.credentials.c.kind == "first"
    expires = select(tables.credentials.c.expires).where(first, tables.credentials.c.user_id == tables.users.c.id)
    return select(tables.users, expires.scalar_subquery().label("first_password_expires"))


def _written(limits: UserLimits) -> str:
    return orjson.dumps({name: value for name, value in asdict(limits).items() if value is not None}).decode()
