"""Stored conversations and their items, for the user of a credential. Texts arrive sealed and are not opened here.

A stored conversation is a row of the same table as every other one, so its saved KV pages get a key in the same way.
Its id, which is also its name, is `conv_` and the row's id.
"""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, or_, select, tuple_, update

from app.accounts import tables
from app.accounts.conversations import opened_key, replace_shared_key, sealed_key
from app.accounts.deleted_rows import delete_all
from app.accounts.keys import key_id, new_key
from app.accounts.logins import Authenticated, Logins
from app.accounts.store import Store
from app.accounts.turns import Turns
from app.messages.accounts import AccountsError, Forgotten
from app.messages.stored import NewItem, StoredConversation, StoredItem

MOST_STORED = 10_000
"""The limit of stored conversations per user."""
MOST_ITEMS = 2048
"""The limit of items per conversation."""
_TURN_BYTES = 32 << 10
"""What a long answer takes: a turn with less room than this is refused before it is computed."""
_TURN_SHARE = 64
"""Of a small limit a turn needs only this part."""
UNDO_S = 12
"""How long a deletion can be undone: the web page offers it for ten seconds, and a click takes time."""
_US = 1_000_000
_PREFIX = "conv_"
_CONVERSATION_ID = re.compile(rf"{_PREFIX}([0-9a-f]{{32}})")
_ITEM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StoredConversations:
    """Implements the conversations of `app.messages.stored.ConversationStore`; every method raises AccountsError."""

    def __init__(self, store: Store, logins: Logins, turns: Turns) -> None:
        self._store = store
        self._logins = logins
        self._turns = turns

    # --- conversations

    def new(self, secret: str, conversation_id: str, sealed: bytes, items: Sequence[NewItem]) -> StoredConversation:
        """Raises `conflict` if the id or name is taken."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row_id, conversations = row_id_of(conversation_id), tables.conversations.c
            if row_id is None:
                raise AccountsError("invalid_value", "That is not the id of a conversation.")
            mine, name_mac = (
                conversations.user_id == known.identity.user_id,
                known.key.conversation_mac(conversation_id),
            )
            taken = select(conversations.id).where(
                or_(conversations.id == row_id, mine & (conversations.name_mac == name_mac))
            )
            if connection.execute(taken).first() is not None:
                raise AccountsError("conflict", "There is a conversation of that id already.")
            stored = (
                select(func.count()).select_from(tables.conversations).where(mine, conversations.sealed.is_not(None))
            )
            if connection.execute(stored).scalar_one() >= MOST_STORED:
                message = f"There are {MOST_STORED} stored conversations already: delete one first."
                raise AccountsError("insufficient_quota", message)
            self.check_room(connection, known, len(sealed))
            now_s = self._store.now()
            connection.execute(
                insert(tables.conversations).values(
                    id=row_id,
                    user_id=known.identity.user_id,
                    name_mac=name_mac,
                    wrapped_ck=sealed_key(known, row_id, new_key()),
                    created=int(now_s),
                    used=int(now_s),
                    items=0,
                    seq=0,
                    bytes=len(sealed),
                    updated_us=int(now_s * _US),
                    sealed=sealed,
                )
            )
            return self.append(connection, known, self.row(connection, known, conversation_id), items)

    def newest(self, secret: str, after: str | None, limit: int) -> Sequence[StoredConversation]:
        """Returns conversations, last updated first."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            columns = tables.conversations.c
            asked = select(tables.conversations).where(
                columns.user_id == known.identity.user_id, columns.sealed.is_not(None), columns.deleted.is_(None)
            )
            if after is not None:
                before = self.row(connection, known, after, "after")
                asked = asked.where(tuple_(columns.updated_us, columns.id) < tuple_(before.updated_us, before.id))
            asked = asked.order_by(columns.updated_us.desc(), columns.id.desc()).limit(max(0, limit))
            return [self._conversation(row) for row in connection.execute(asked)]

    def get(self, secret: str, conversation_id: str) -> StoredConversation:
        with self._store.transaction() as connection:
            return self._conversation(
                self.row(connection, self._logins.authenticate(connection, secret), conversation_id)
            )

    def change(self, secret: str, conversation_id: str, sealed: bytes) -> StoredConversation:
        """Replaces the metadata, also while a turn runs."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self.row(connection, known, conversation_id)
            self.check_room(connection, known, len(sealed) - len(row.sealed))
            size_bytes = row.bytes + len(sealed) - len(row.sealed)
            return self._changed(connection, row, sealed=sealed, bytes=size_bytes)

    def delete(self, secret: str, conversation_id: str | None, undo: bool = False) -> Forgotten:
        """Deletes a conversation with items, responses and key; None: all that the user has stored.

        undo: for `UNDO_S` items and responses are only hidden, and `restore` brings them back. The key is destroyed at
        once, so its KV pages are computed again.
        """
        store = self._store
        with store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            user_id = known.identity.user_id
            if conversation_id is None:
                connection.execute(delete(tables.responses).where(tables.responses.c.user_id == user_id))
                mine = tables.conversations.c.user_id == user_id
                count = connection.execute(delete(tables.conversations).where(mine)).rowcount
                delete_all(connection, user_id)
                replace_shared_key(connection, known)
                forgotten, target = Forgotten(count, None), "all"
            else:
                row = self.row(connection, known, conversation_id)
                found = tables.conversations.c.id == row.id
                if undo:
                    hidden = {"deleted": int(store.now()), "wrapped_ck": sealed_key(known, row.id, new_key())}
                    connection.execute(update(tables.conversations).where(found).values(**hidden))
                else:
                    connection.execute(delete(tables.conversations).where(found))
                forgotten, target = Forgotten(1, key_id(opened_key(known, row))), row.id
            store.note(connection, user_id, "delete_conversation", target)
        store.changes.add(user_id)
        return forgotten

    def restore(self, secret: str, conversation_id: str) -> StoredConversation:
        """Undoes a deletion within `UNDO_S`."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self.row(connection, known, conversation_id, is_hidden=True)
            self._store.note(connection, known.identity.user_id, "restore_conversation", row.id)
            found = tables.conversations.c.id == row.id
            connection.execute(update(tables.conversations).where(found).values(deleted=None))
            return self._conversation(row)

    def destroy_deleted(self, *, at_once: bool = False) -> None:
        """Destroys all users' deleted conversations that can't be restored any more; `at_once` the others too."""
        now_s, deleted = int(self._store.now()), tables.conversations.c.deleted
        over: ColumnElement[bool] = deleted.is_not(None)
        if not at_once:
            over &= (deleted <= now_s - UNDO_S) | (deleted > now_s)  # the clock was set back
        with self._store.transaction() as connection:
            users = connection.execute(select(tables.conversations.c.user_id).where(over)).scalars().all()
            if users:
                connection.execute(delete(tables.conversations).where(over))
        for user_id in set(users):
            self._store.changes.add(user_id)

    # --- items

    def items(
        self, secret: str, conversation_id: str, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredItem]:
        with self._store.transaction() as connection:
            row = self.row(connection, self._logins.authenticate(connection, secret), conversation_id)
            columns = tables.items.c
            asked = select(tables.items).where(columns.conversation_id == row.id)
            if after is not None:
                seq = self._item(connection, row, after, "after").seq
                asked = asked.where(columns.seq < seq if newest_first else columns.seq > seq)
            order = columns.seq.desc() if newest_first else columns.seq
            return [_item(each) for each in connection.execute(asked.order_by(order).limit(max(0, limit)))]

    def item(self, secret: str, conversation_id: str, item_id: str) -> StoredItem:
        with self._store.transaction() as connection:
            row = self.row(connection, self._logins.authenticate(connection, secret), conversation_id)
            return _item(self._item(connection, row, item_id))

    def add_items(self, secret: str, conversation_id: str, items: Sequence[NewItem]) -> StoredConversation:
        """Appends items."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self.row(connection, known, conversation_id)
            self._turns.check_none(row.id, self._store.now())
            return self.append(connection, known, row, items)

    def delete_item(self, secret: str, conversation_id: str, item_id: str) -> StoredConversation:
        with self._store.transaction() as connection:
            row = self.row(connection, self._logins.authenticate(connection, secret), conversation_id)
            gone = self._item(connection, row, item_id)
            self._turns.check_none(row.id, self._store.now())
            found = (tables.items.c.conversation_id == row.id) & (tables.items.c.seq == gone.seq)
            connection.execute(delete(tables.items).where(found))
            return self._changed(
                connection, row, items=row.items - 1, seq=row.seq + 1, bytes=row.bytes - len(gone.sealed)
            )

    # --- turns

    def begin_turn(self, secret: str, ingress: str, conversation_id: str, response_id: str) -> StoredConversation:
        """Begins a turn under a new stored number, so that no turn from before a restart can pass for it.

        Raises AccountsError `insufficient_quota` if its answer would find no room.
        """
        now_s = self._store.now()
        check_id(response_id)
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self.row(connection, known, conversation_id)
            self._turns.check_none(row.id, now_s)
            most = self._store.settings.stored_bytes_per_user
            self.check_room(connection, known, min(_TURN_BYTES, most // _TURN_SHARE))
            found = tables.conversations.c.id == row.id
            connection.execute(update(tables.conversations).where(found).values(seq=row.seq + 1))
            begun = connection.execute(select(tables.conversations).where(found)).one()
        self._turns.begin(row.id, ingress, begun.seq, secret, response_id, now_s)
        return self._conversation(begun)

    def add_question(
        self, secret: str, conversation_id: str, items: Sequence[NewItem], turn: int
    ) -> StoredConversation:
        """Appends items of the running turn; its number becomes the new `seq`."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self.row(connection, known, conversation_id)
            if row.seq != turn:
                raise turn_is_over()
            added = self.append(connection, known, row, items)
        self._turns.renumber(row.id, turn, added.seq)
        return added

    def end_turn(self, secret: str, conversation_id: str, turn: int) -> None:
        """Ends a turn; one that is not running has already ended."""
        row_id = row_id_of(conversation_id)
        if row_id is not None:
            self._turns.end(row_id, turn, secret)

    # --- shared with responses

    def row(
        self,
        connection: Connection,
        known: Authenticated,
        conversation_id: str,
        param: str | None = None,
        *,
        is_hidden: bool = False,
    ) -> Row[Any]:
        """Returns a stored conversation's row. Raises AccountsError `not_found`, also for another user's.

        is_hidden: find only one whose deletion can still be undone; otherwise only others.
        """
        columns = tables.conversations.c
        mine = (columns.user_id == known.identity.user_id) & columns.sealed.is_not(None)
        mine &= columns.deleted.is_not(None) if is_hidden else columns.deleted.is_(None)
        found = select(tables.conversations).where(mine, columns.id == (row_id_of(conversation_id) or ""))
        row = connection.execute(found).one_or_none()
        if row is None:
            raise AccountsError("not_found", "There is no such conversation.", param=param)
        return row

    def append(
        self, connection: Connection, known: Authenticated, row: Row[Any], items: Sequence[NewItem]
    ) -> StoredConversation:
        """Appends items to a conversation. Raises AccountsError `insufficient_quota`, `conflict`."""
        if row.items + len(items) > MOST_ITEMS:
            message = f"A conversation has at most {MOST_ITEMS} items: delete some, or begin another one."
            raise AccountsError("insufficient_quota", message)
        more_bytes = sum(len(item.sealed) for item in items)
        self.check_room(connection, known, more_bytes)
        ids = {item.id for item in items}
        for item_id in ids:
            check_id(item_id)
        columns = tables.items.c
        taken = select(columns.id).where(columns.conversation_id == row.id, columns.id.in_(ids)).limit(1)
        if len(ids) < len(items) or connection.execute(taken).first() is not None:
            raise AccountsError("conflict", "The conversation has an item of that id already.")
        if items:
            values = [
                {"conversation_id": row.id, "seq": seq, "id": item.id, "sealed": item.sealed}
                for seq, item in enumerate(items, row.seq + 1)
            ]
            connection.execute(insert(tables.items), values)
        return self._changed(
            connection,
            row,
            items=row.items + len(items),
            seq=row.seq + max(1, len(items)),
            bytes=row.bytes + more_bytes,
        )

    def stored_bytes(self, user_id: str) -> int:
        """Returns the size of all that is stored of a user."""
        with self._store.transaction() as connection:
            return _stored_bytes(connection, user_id)

    def check_room(self, connection: Connection, known: Authenticated, more_bytes: int) -> None:
        """Raises AccountsError `insufficient_quota` if `more_bytes` exceed the user's storage."""
        user_id, most = known.identity.user_id, self._store.settings.stored_bytes_per_user
        if more_bytes <= 0:
            return
        used = _stored_bytes(connection, user_id)
        if used + more_bytes > most:
            message = (
                f"Your stored conversations and responses take {used} of {most} bytes, too many for {more_bytes} more:"
                " delete some, or send 'store': false."
            )
            raise AccountsError("insufficient_quota", message)

    # --- internals

    def _changed(self, connection: Connection, row: Row[Any], **values: Any) -> StoredConversation:
        found = tables.conversations.c.id == row.id
        updated_us = int(self._store.now() * _US)
        connection.execute(update(tables.conversations).where(found).values(updated_us=updated_us, **values))
        return self._conversation(connection.execute(select(tables.conversations).where(found)).one())

    def _conversation(self, row: Row[Any]) -> StoredConversation:
        return StoredConversation(
            id=conversation_id_of(row.id),
            created=row.created,
            updated=row.updated_us // _US,
            items=row.items,
            seq=row.seq,
            sealed=row.sealed,
            response_id=self._turns.response_of(row.id, self._store.now()),
        )

    @staticmethod
    def _item(connection: Connection, row: Row[Any], item_id: str, param: str | None = None) -> Row[Any]:
        columns = tables.items.c
        found = (columns.conversation_id == row.id) & (columns.id == known_id(item_id))
        item = connection.execute(select(tables.items).where(found)).one_or_none()
        if item is None:
            raise AccountsError("not_found", "There is no such item.", param=param)
        return item


def _stored_bytes(connection: Connection, user_id: str) -> int:
    used = 0
    for table in (tables.conversations, tables.responses):
        taken = select(func.coalesce(func.sum(table.c.bytes), 0)).where(table.c.user_id == user_id)
        used += int(connection.execute(taken).scalar_one())
    return used


def of_no_hidden(responses: Any) -> ColumnElement[bool]:
    """Returns the condition that a response's conversation, if any, is not hidden by a deletion."""
    hidden = select(tables.conversations.c.id).where(tables.conversations.c.deleted.is_not(None))
    shown: ColumnElement[bool] = responses.conversation_id.is_(None) | responses.conversation_id.not_in(hidden)
    return shown


def turn_is_over() -> AccountsError:
    """The error for a turn whose conversation has changed, or in which another turn has begun."""
    message = "The conversation has changed since this response began; it is not stored."
    return AccountsError("conversation_conflict", message)


def row_id_of(conversation_id: str) -> str | None:
    """Returns the id of the row; None if the secret is no stored conversation's id."""
    match = _CONVERSATION_ID.fullmatch(conversation_id)
    return match and match[1]


def conversation_id_of(row_id: str) -> str:
    """Returns the stored conversation's id."""
    return _PREFIX + row_id


def check_id(item_id: str) -> None:
    """Raises AccountsError `invalid_value` if the secret is no id of an item or a response."""
    if not _ITEM_ID.fullmatch(item_id):
        raise AccountsError("invalid_value", "An id has 1 to 64 letters, digits, - and _.")


def known_id(item_id: str) -> str:
    """Returns the id, or "" if it is malformed: Postgres refuses some texts."""
    return item_id if _ITEM_ID.fullmatch(item_id) else ""


def _item(row: Row[Any]) -> StoredItem:
    return StoredItem(row.id, row.seq, row.sealed)
