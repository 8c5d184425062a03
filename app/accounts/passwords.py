"""Passwords: how one is verified, and how a new one seals the user's key. Knows no session."""

import os
from dataclasses import asdict, dataclass, field

import orjson
from sqlalchemy import Connection, delete, insert

from app.accounts import tables
from app.accounts.credentials import check_new_password, new_key_id, normalized_password
from app.accounts.keys import SALT_BYTES, PasswordCost, UserKey, stretch
from app.accounts.store import Store
from app.messages.accounts import AccountsError

PASSWORDS = ("password", "first")
"""Kinds of password credentials: chosen by the user, and set by an administrator for the first login."""
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Challenge:
    """What is needed to hash a password attempt. Unknown names get one too, so that both take equally long."""

    user_id: str
    """"": there is no such user."""
    credential_id: str
    salt: bytes
    cost: PasswordCost
    wrapped_umk: bytes
    expires: int | None = None

    def stretched(self, password: str) -> bytes:
        """Hashes the password to 32 bytes; takes most of a second, so run it in a thread."""
        return stretch(normalized_password(password), self.salt, self.cost)


@dataclass(frozen=True, slots=True)
class NewPassword:
    """A password hashed with a new salt."""

    secret: bytes = field(repr=False)
    salt: bytes
    cost: PasswordCost


def wrong_login() -> AccountsError:
    """The error is the same for a wrong name and a wrong password."""
    return AccountsError("invalid_login", "Name or password is wrong.")


def new_password(password: str, cost: PasswordCost) -> NewPassword:
    """Checks and hashes a password in most of a second, so run it in a thread. Raises AccountsError `invalid_value`."""
    normal = normalized_password(password)
    check_new_password(normal)
    salt = os.urandom(SALT_BYTES)
    return NewPassword(stretch(normal, salt, cost), salt, cost)


def set_password(
    store: Store, connection: Connection, user_id: str, key: UserKey, new: NewPassword, kind: str = "password"
) -> None:
    """Replaces the user's password. kind: `first` if an administrator knows it; then it expires."""
    owned = (tables.credentials.c.user_id == user_id) & tables.credentials.c.kind.in_(PASSWORDS)
    connection.execute(delete(tables.credentials).where(owned))
    credential_id, now_s = new_key_id(), int(store.now())
    connection.execute(
        insert(tables.credentials).values(
            id=credential_id,
            user_id=user_id,
            kind=kind,
            expires=now_s + store.settings.first_password_days * _DAY_S if kind == "first" else None,
            salt=new.salt,
            params=orjson.dumps(asdict(new.cost)).decode(),
            wrapped_umk=key.wrap(store.root, new.secret, user_id, credential_id),
            created=now_s,
        )
    )
