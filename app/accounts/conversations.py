"""The keys of conversations. To forget a conversation is to destroy its key; its pages are unlinked by who has them.

A conversation is found by its name, of which the table has a MAC under the user's key. A request that names none goes
on with the user's default conversation.
"""

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from app.accounts import tables
from app.accounts.credentials import new_id
from app.accounts.keys import key_id, new_key
from app.accounts.logins import Known, Logins
from app.accounts.store import Store
from app.accounts.users import new_shared_key
from app.messages.accounts import AccountsError, ConversationKey, Forgotten

MOST_CONVERSATIONS = 1000
"""Of one user. A further one takes the place of the one that was unused for longest, whose key is destroyed."""
_USED_PERIOD_S = 3600
"""A conversation's last use is written down this often."""


class Conversations:
    """Keys for the user who shows a credential."""

    def __init__(self, store: Store, logins: Logins) -> None:
        self._store = store
        self._logins = logins

    def key(self, text: str, name: str | None) -> ConversationKey:
        """The key of the user's conversation of that name (None: the default one); made if there is none."""
        with self._store.transaction() as connection:
            known = self._logins.known(connection, text)
            now_s = int(self._store.now())
            found = _of_name(known, name)
            row = connection.execute(select(tables.conversations).where(found)).one_or_none()
            if row is None:
                return self._new(connection, known, name, now_s)
            conversation_key = known.key.unseal(row.wrapped_ck, _context(row.id))
        if row.used + _USED_PERIOD_S <= now_s:
            self._store.write_use(update(tables.conversations).where(found).values(used=now_s))
        return ConversationKey(row.id, conversation_key, key_id(conversation_key))

    def forget(self, text: str, name: str | None) -> Forgotten:
        """Destroys the key of the conversation of that name; with None those of all, and the user's shared key.

        Raises AccountsError: `not_found`.
        """
        store = self._store
        with store.transaction() as connection:
            known = self._logins.known(connection, text)
            user_id = known.identity.user_id
            mine = tables.conversations.c.user_id == user_id
            if name is None:
                count = connection.execute(delete(tables.conversations).where(mine)).rowcount
                shared = new_shared_key(known.key, user_id)
                connection.execute(update(tables.users).where(tables.users.c.id == user_id).values(wrapped_sk=shared))
                forgotten, target = Forgotten(count, None), "all"
            else:
                found = _of_name(known, name)
                row = connection.execute(select(tables.conversations).where(found)).one_or_none()
                if row is None:
                    raise AccountsError("not_found", "There is no such conversation.", param="conversation")
                connection.execute(delete(tables.conversations).where(tables.conversations.c.id == row.id))
                gone = key_id(known.key.unseal(row.wrapped_ck, _context(row.id)))
                forgotten, target = Forgotten(1, gone), row.id
            store.note(connection, user_id, "forget", target)
        store.changes.add(user_id)
        return forgotten

    def _new(self, connection: Connection, known: Known, name: str | None, now_s: int) -> ConversationKey:
        user_id = known.identity.user_id
        mine = tables.conversations.c.user_id == user_id
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
                wrapped_ck=known.key.seal(conversation_key, _context(conversation_id)),
                created=now_s,
                used=now_s,
            )
        )
        return ConversationKey(conversation_id, conversation_key, key_id(conversation_key))


def _of_name(known: Known, name: str | None) -> ColumnElement[bool]:
    mine = tables.conversations.c.user_id == known.identity.user_id
    return mine & (tables.conversations.c.name_mac == known.key.conversation_mac(name))


def _context(conversation_id: str) -> str:
    return f"key of conversation {conversation_id}"
