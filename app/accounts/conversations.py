"""The keys of conversations. To forget a conversation is to destroy its key; its pages are unlinked by who has them."""

from sqlalchemy import delete, insert, select, update

from app.accounts import tables
from app.accounts.credentials import new_id
from app.accounts.keys import key_id, new_key
from app.accounts.logins import Logins
from app.accounts.store import Store
from app.accounts.users import new_shared_key
from app.messages.accounts import AccountsError, ConversationKey


class Conversations:
    """Keys for the user who shows a credential."""

    def __init__(self, store: Store, logins: Logins) -> None:
        self._store = store
        self._logins = logins

    def key(self, text: str, conversation_id: str | None) -> ConversationKey:
        """The key of one of the user's conversations, or of a new one. Raises AccountsError: `not_found`."""
        with self._store.transaction() as connection:
            known = self._logins.known(connection, text)
            if conversation_id is None:
                conversation_id, conversation_key = new_id(), new_key()
                connection.execute(
                    insert(tables.conversations).values(
                        id=conversation_id,
                        user_id=known.identity.user_id,
                        wrapped_ck=known.key.seal(conversation_key, f"key of conversation {conversation_id}"),
                        created=int(self._store.now()),
                    )
                )
            else:
                mine = tables.conversations.c.user_id == known.identity.user_id
                found = select(tables.conversations).where(mine, tables.conversations.c.id == conversation_id)
                row = connection.execute(found).one_or_none()
                if row is None:
                    raise AccountsError("not_found", "There is no such conversation.")
                conversation_key = known.key.unseal(row.wrapped_ck, f"key of conversation {conversation_id}")
            return ConversationKey(conversation_id, conversation_key, key_id(conversation_key))

    def forget(self, text: str, conversation_id: str | None) -> int:
        """Destroys a conversation's key; with None all of the user's, and the shared key. How many there were.

        Raises AccountsError: `not_found`.
        """
        store = self._store
        with store.transaction() as connection:
            known = self._logins.known(connection, text)
            user_id = known.identity.user_id
            gone = delete(tables.conversations).where(tables.conversations.c.user_id == user_id)
            if conversation_id is not None:
                gone = gone.where(tables.conversations.c.id == conversation_id)
            count = connection.execute(gone).rowcount
            if conversation_id is None:
                shared = new_shared_key(known.key, user_id)
                connection.execute(update(tables.users).where(tables.users.c.id == user_id).values(wrapped_sk=shared))
            elif not count:
                raise AccountsError("not_found", "There is no such conversation.")
            store.note(connection, user_id, "forget", conversation_id or "all")
        store.changes.add(user_id)
        return count
