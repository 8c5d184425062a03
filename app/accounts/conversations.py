"""Conversation keys. A conversation is forgotten by destroying its key; whoever has its KV pages unlinks them.

A conversation is found by a MAC of its name under the user's key. A request without a name uses the user's default
conversation. A stored conversation (`stored_conversations`) has its id as name; forgetting it only replaces its key,
and its items stay.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from app.accounts import tables
from app.accounts.credentials import new_id
from app.accounts.keys import key_id, new_key, new_shared_key
from app.accounts.logins import Authenticated, Logins
from app.accounts.store import Store
from app.messages.accounts import AccountsError, ConversationKey, Forgotten

MOST_CONVERSATIONS = 1000
"""The limit per user, stored conversations not counted. Another one evicts the least recently used, whose key is
destroyed."""
_USED_PERIOD_S = 3600
"""The last use of a conversation is written at most this often."""


class Conversations:
    """Keys of conversations, for the user whose credential is given."""

    def __init__(self, store: Store, logins: Logins) -> None:
        self._store = store
        self._logins = logins

    def key(self, secret: str, name: str | None) -> ConversationKey:
        """Returns the key of the conversation of that name (None: the default one), and makes it if there is none."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            now_s = int(self._store.now())
            found = _of_name(known, name)
            row = connection.execute(select(tables.conversations).where(found)).one_or_none()
            if row is None:
                return self._new(connection, known, name, now_s)
            conversation_key = opened_key(known, row)
        if row.used + _USED_PERIOD_S <= now_s:
            self._store.write_use(update(tables.conversations).where(found).values(used=now_s))
        return ConversationKey(row.id, conversation_key, key_id(conversation_key))

    def forget(self, secret: str, name: str | None) -> Forgotten:
        """Destroys the key of the named conversation; with None those of all, and the user's shared key.

        Raises AccountsError `not_found`.
        """
        store = self._store
        with store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            user_id = known.identity.user_id
            if name is None:
                count = self._forget_all(connection, known)
                replace_shared_key(connection, known)
                forgotten, target = Forgotten(count, None), "all"
            else:
                row = connection.execute(select(tables.conversations).where(_of_name(known, name))).one_or_none()
                if row is None:
                    raise AccountsError("not_found", "There is no such conversation.", param="conversation")
                self._forget(connection, known, row.id, is_stored=row.sealed is not None)
                forgotten, target = Forgotten(1, key_id(opened_key(known, row))), row.id
            store.note(connection, user_id, "forget", target)
        store.changes.add(user_id)
        return forgotten

    def _forget_all(self, connection: Connection, known: Authenticated) -> int:
        """Returns how many conversations there were."""
        mine = tables.conversations.c.user_id == known.identity.user_id
        stored = select(tables.conversations.c.id).where(mine, tables.conversations.c.sealed.is_not(None))
        ids = connection.execute(stored).scalars().all()
        for each in ids:
            self._forget(connection, known, each, is_stored=True)
        others = delete(tables.conversations).where(mine, tables.conversations.c.sealed.is_(None))
        return len(ids) + connection.execute(others).rowcount

    def _forget(self, connection: Connection, known: Authenticated, row_id: str, *, is_stored: bool) -> None:
        found = tables.conversations.c.id == row_id
        if is_stored:
            another = sealed_key(known, row_id, new_key())
            connection.execute(update(tables.conversations).where(found).values(wrapped_ck=another))
        else:
            connection.execute(delete(tables.conversations).where(found))

    def _new(self, connection: Connection, known: Authenticated, name: str | None, now_s: int) -> ConversationKey:
        user_id = known.identity.user_id
        mine = (tables.conversations.c.user_id == user_id) & tables.conversations.c.sealed.is_(None)
        count = connection.execute(select(func.count()).select_from(tables.conversations).where(mine)).scalar_one()
        if count >= MOST_CONVERSATIONS:
            by_use = select(tables.conversations.c.id).where(mine).order_by(tables.conversations.c.used)
            oldest = connection.execute(by_use.limit(count - MOST_CONVERSATIONS + 1)).scalars().all()
            connection.execute(delete(tables.conversations).where(tables.conversations.c.id.in_(oldest)))
        conversation_id, conversation_key = new_id(), new_key()
        connection.execute(
            insert(tables.conversations).values(
                id=conversation_id,
                user_id=user_id,
                name_mac=known.key.conversation_mac(name),
                wrapped_ck=sealed_key(known, conversation_id, conversation_key),
                created=now_s,
                used=now_s,
            )
        )
        return ConversationKey(conversation_id, conversation_key, key_id(conversation_key))


def _of_name(known: Authenticated, name: str | None) -> ColumnElement[bool]:
    mine = tables.conversations.c.user_id == known.identity.user_id
    return mine & (tables.conversations.c.name_mac == known.key.conversation_mac(name))


def sealed_key(known: Authenticated, row_id: str, conversation_key: bytes) -> bytes:
    """Seals a CK for its conversation's row."""
    return known.key.seal(conversation_key, _context(row_id))


def opened_key(known: Authenticated, row: Row[Any]) -> bytes:
    """Opens the CK of a conversation's row. Raises SealError."""
    return known.key.unseal(row.wrapped_ck, _context(row.id))


def replace_shared_key(connection: Connection, known: Authenticated) -> None:
    """Gives the user a new SK."""
    user_id = known.identity.user_id
    shared = new_shared_key(known.key, user_id)
    connection.execute(update(tables.users).where(tables.users.c.id == user_id).values(wrapped_sk=shared))


def _context(conversation_id: str) -> str:
    return f"key of conversation {conversation_id}"
