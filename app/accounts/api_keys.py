"""Users' API keys: lists, makes and revokes them. Which user has one, logins.py says."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, insert, select

from app.accounts import tables
from app.accounts.credentials import new_api_key, new_key_id, parse_credential
from app.accounts.logins import Logins
from app.accounts.store import Store
from app.messages.accounts import AccountsError, KeyInfo, NewKey

MOST_KEYS = 100
"""The limit of API keys per user."""
_MAX_LABEL_CHARACTERS = 100
_DAY_S = 86_400


class ApiKeys:
    """The API keys of all users. A method takes the credential of the user whose keys it is about."""

    def __init__(self, store: Store, logins: Logins) -> None:
        self._store = store
        self._logins = logins

    def all(self, secret: str) -> Sequence[KeyInfo]:
        """Returns the user's API keys, oldest first."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            rows = connection.execute(
                select(tables.credentials)
                .where(_owned(known.identity.user_id))
                .order_by(tables.credentials.c.created, tables.credentials.c.id)
            )
            return [
                KeyInfo(
                    row.id, known.key.unseal(row.label_sealed, f"label of {row.id}").decode(), row.created, row.expires
                )
                for row in rows
            ]

    def add(self, secret: str, label: str, days: int | None) -> NewKey:
        """Creates an API key. Raises AccountsError: `invalid_value` for a long label, `conflict` for too many keys."""
        if len(label) > _MAX_LABEL_CHARACTERS:
            raise AccountsError(
                "invalid_value", f"A label has at most {_MAX_LABEL_CHARACTERS} characters.", param="label"
            )
        store = self._store
        with store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            user_id = known.identity.user_id
            if len(connection.execute(select(tables.credentials.c.id).where(_owned(user_id))).all()) >= MOST_KEYS:
                raise AccountsError("conflict", f"There are {MOST_KEYS} keys already: revoke one first.")
            now_s = int(store.now())
            info = KeyInfo(new_key_id(), label, now_s, None if days is None else now_s + days * _DAY_S)
            new_secret = new_api_key(info.id)
            credential = parse_credential(new_secret)
            assert credential is not None
            connection.execute(
                insert(tables.credentials).values(
                    id=info.id,
                    user_id=user_id,
                    kind="api_key",
                    label_sealed=known.key.seal(label.encode(), f"label of {info.id}"),
                    wrapped_umk=known.key.wrap(store.root, credential.secret, user_id, info.id),
                    created=info.created,
                    expires=info.expires,
                )
            )
            store.note(connection, user_id, "add_key", info.id)
            return NewKey(info, new_secret)

    def revoke(self, secret: str, wanted: str) -> None:
        """Raises AccountsError `not_found`, also for a key of another user."""
        store = self._store
        with store.transaction() as connection:
            user_id = self._logins.authenticate(connection, secret).identity.user_id
            gone = connection.execute(
                delete(tables.credentials).where(_owned(user_id), tables.credentials.c.id == wanted)
            )
            if not gone.rowcount:
                raise AccountsError("not_found", "There is no such key.")
            store.note(connection, user_id, "revoke_key", wanted)
        store.changes.add(wanted)


def _owned(user_id: str) -> Any:
    return (tables.credentials.c.user_id == user_id) & (tables.credentials.c.kind == "api_key")
