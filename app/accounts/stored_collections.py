"""Users' collections of documents, for the user of a credential. Names arrive sealed and stay so.

A collection's key is sealed for its owner under the user's key, and for everybody with whom it is shared under that
user's public key (sharing.py). Deleting destroys these first; the passages go in small steps afterwards.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, tuple_, update

from app.accounts import tables
from app.accounts.credentials import normalized_name
from app.accounts.deleted_rows import hide_collections, hide_documents_files
from app.accounts.logins import Authenticated, Logins
from app.accounts.sharing import sealed_for
from app.accounts.store import Actor, Store
from app.accounts.stored_conversations import check_id, known_id
from app.accounts.stored_files import StoredFiles
from app.accounts.users import check_admin
from app.messages.accounts import AccountsError
from app.messages.knowledge import DocumentCounts, StoredCollection, key_purpose
from app.sealing.records import seal

MOST_COLLECTIONS = 1000
"""The limit per owner."""
_DELETED_AT_ONCE = 16
_KEY_BYTES = 32
_US = 1_000_000
IS_SHOWN: Final = tables.documents.c.state.not_in(("deleted", "former"))
"""At most one document of a file is."""


class StoredCollections:
    """Implements the collections of `app.messages.knowledge.CollectionStore`; every method raises AccountsError."""

    def __init__(self, store: Store, logins: Logins, files: StoredFiles) -> None:
        self._store = store
        self._logins = logins
        self._files = files

    # --- collections

    def new(self, secret: str, collection_id: str, key: bytes, sealed: bytes) -> StoredCollection:
        check_id(collection_id)
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            user_id, columns = known.identity.user_id, tables.collections.c
            found = connection.execute(select(columns.user_id).where(columns.id == collection_id)).one_or_none()
            if found is not None and found.user_id == user_id:
                return self._collection(connection, known, self.owned(connection, known, collection_id))
            if found is not None or len(key) != _KEY_BYTES:
                raise AccountsError("conflict", "There is a collection of that id already.")
            mine = (columns.user_id == user_id) & (columns.state == "ready")
            count = connection.execute(select(func.count()).select_from(tables.collections).where(mine)).scalar_one()
            if count >= MOST_COLLECTIONS:
                message = f"There are {MOST_COLLECTIONS} collections already: delete one first."
                raise AccountsError("insufficient_quota", message)
            self._files.check_room(connection, known, len(sealed))
            connection.execute(
                insert(tables.collections).values(
                    id=collection_id,
                    user_id=user_id,
                    state="ready",
                    created_us=int(self._store.now() * _US),
                    changes=0,
                    bytes=len(sealed),
                    sealed=sealed,
                )
            )
            wrapped = known.key.seal(key, _context(collection_id, user_id))
            member = {"collection_id": collection_id, "user_id": user_id, "wrapped_key": wrapped}
            connection.execute(insert(tables.collection_members).values(**member))
            self._store.note(connection, user_id, "add_collection", collection_id)
            return self._collection(connection, known, self.owned(connection, known, collection_id))

    def listed(self, secret: str, after: str | None, limit: int, newest_first: bool) -> Sequence[StoredCollection]:
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            columns = tables.collections.c
            asked, place = _seen_by(known), tuple_(columns.created_us, columns.id)
            if after is not None:
                row = self.seen(connection, known, after, param="after")
                last = tuple_(row.created_us, row.id)
                asked = asked.where(place < last if newest_first else place > last)
            order = (columns.created_us.desc(), columns.id.desc()) if newest_first else (columns.created_us, columns.id)
            found = connection.execute(asked.order_by(*order).limit(max(0, limit))).all()
            return self._opened(connection, known, found)

    def get(self, secret: str, collection_id: str) -> StoredCollection:
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            return self._collection(connection, known, self.seen(connection, known, collection_id))

    def change(self, secret: str, collection_id: str, sealed: bytes) -> StoredCollection:
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            row = self.owned(connection, known, collection_id)
            more = len(sealed) - len(row.sealed)
            self._files.check_room(connection, known, more)
            self.set(connection, row.id, sealed=sealed, bytes=row.bytes + more)
            return self._collection(connection, known, self.owned(connection, known, collection_id))

    def delete(self, secret: str, collection_id: str, with_files: bool = False) -> None:
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            row = self.owned(connection, known, collection_id)
            if with_files:
                hide_documents_files(connection, row.user_id, tables.documents.c.collection_id == row.id)
            hide_collections(connection, tables.collections.c.id == row.id)
            self._store.note(connection, known.identity.user_id, "delete_collection", row.id)

    def members(self, secret: str, collection_id: str) -> Sequence[str]:
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            return self._member_names(connection, self.owned(connection, known, collection_id))

    def share(self, secret: str, collection_id: str, names: Sequence[str]) -> Sequence[str]:
        with self._store.transaction() as connection:
            known = self.known(connection, secret)
            row = self.owned(connection, known, collection_id)
            key, members = self._opened_key(known, row), tables.collection_members.c
            of_now = select(members.user_id).where(members.collection_id == row.id)
            there = connection.execute(of_now).scalars().all()
            wanted = dict[str, bytes]()
            for name in names:
                user = self._store.user_of_name(connection, normalized_name(name))
                if user is None or user.id not in there:
                    check_admin(Actor(row.user_id, known.identity.role))
                if user is None:
                    raise AccountsError("invalid_value", f"There is no user {name}.", param="users")
                if user.sharing_key is None:
                    message = f"{name} has no key to share with yet: the user has to log in once."
                    raise AccountsError("conflict", message, param="users")
                if user.id != row.user_id:
                    wanted[user.id] = sealed_for(user.sharing_key, key, _context(row.id, user.id))
            others = (members.collection_id == row.id) & (members.user_id != row.user_id)
            connection.execute(delete(tables.collection_members).where(others))
            for user_id, wrapped in wanted.items():
                member = {"collection_id": row.id, "user_id": user_id, "wrapped_key": wrapped}
                connection.execute(insert(tables.collection_members).values(**member))
            self._store.note(connection, known.identity.user_id, "share_collection", row.id)
            return self._member_names(connection, row)

    def destroy_some(self) -> bool:
        """Destroys some passages of what was deleted, of all users; returns whether there may be more."""
        documents, passages, collections = tables.documents.c, tables.passages.c, tables.collections.c
        hidden = select(collections.id).where(collections.state == "deleted")
        gone = (documents.state == "deleted") | documents.collection_id.in_(hidden)
        with self._store.transaction() as connection:
            document = connection.execute(select(tables.documents).where(gone).limit(1)).one_or_none()
            if document is None:
                return bool(
                    connection.execute(delete(tables.collections).where(collections.state == "deleted")).rowcount
                )
            of_document = (passages.collection_id == document.collection_id) & (passages.number == document.number)
            numbers = (
                connection.execute(select(passages.seq).where(of_document).limit(_DELETED_AT_ONCE)).scalars().all()
            )
            connection.execute(delete(tables.passages).where(of_document, passages.seq.in_(numbers)))
            if len(numbers) < _DELETED_AT_ONCE:
                is_it = (documents.collection_id == document.collection_id) & (documents.number == document.number)
                connection.execute(delete(tables.documents).where(is_it))
        return True

    # --- internals

    def known(self, connection: Connection, secret: str) -> Authenticated:
        """Verifies a credential, and sees to it that others can share with its user."""
        known = self._logins.authenticate(connection, secret)
        mine = tables.users.c.id == known.identity.user_id
        public = connection.execute(select(tables.users.c.sharing_key).where(mine)).scalar_one()
        if public is None:
            values = {"sharing_key": known.key.sharing_key().public()}
            connection.execute(update(tables.users).where(mine).values(**values))
        return known

    @staticmethod
    def seen(connection: Connection, known: Authenticated, collection_id: str, param: str | None = None) -> Row[Any]:
        """Finds a collection that the user may search in."""
        found = _seen_by(known).where(tables.collections.c.id == known_id(collection_id))
        row = connection.execute(found).one_or_none()
        if row is None:
            raise AccountsError("not_found", "There is no such collection.", param=param)
        return row

    def owned(self, connection: Connection, known: Authenticated, collection_id: str) -> Row[Any]:
        """Finds a collection that the user may change."""
        row = self.seen(connection, known, collection_id)
        if row.user_id != known.identity.user_id:
            raise AccountsError("owner_only", "Only its owner may change a collection.")
        return row

    def _opened_key(self, known: Authenticated, row: Row[Any]) -> bytes:
        user_id = known.identity.user_id
        context = _context(row.id, user_id)
        if row.user_id == user_id:
            return known.key.unseal(row.wrapped_key, context)
        return known.key.sharing_key().opened(row.wrapped_key, context)

    def _collection(self, connection: Connection, known: Authenticated, row: Row[Any]) -> StoredCollection:
        return self._opened(connection, known, [row])[0]

    def _opened(
        self, connection: Connection, known: Authenticated, rows: Sequence[Row[Any]]
    ) -> Sequence[StoredCollection]:
        counts = counts_of(connection, tables.documents.c.collection_id.in_([row.id for row in rows]))
        return [
            StoredCollection(
                id=row.id,
                created=row.created_us // _US,
                is_mine=row.user_id == known.identity.user_id,
                changes=row.changes,
                counts=counts.get(row.id, DocumentCounts()),
                sealed_bytes=row.bytes,
                sealed_key=seal(known.key.texts_key(), self._opened_key(known, row), key_purpose(row.id)),
                sealed=row.sealed,
            )
            for row in rows
        ]

    @staticmethod
    def set(connection: Connection, collection_id: str, **values: Any) -> None:
        """Changes columns of a collection."""
        connection.execute(update(tables.collections).where(tables.collections.c.id == collection_id).values(**values))

    def _member_names(self, connection: Connection, row: Row[Any]) -> Sequence[str]:
        users, members = tables.users.c, tables.collection_members.c
        others = (members.collection_id == row.id) & (members.user_id != row.user_id)
        found = select(users.id, users.name_sealed).join_from(tables.collection_members, tables.users).where(others)
        root = self._store.root
        return sorted(root.unseal_name(each.name_sealed, each.id) for each in connection.execute(found))


def counts_of(connection: Connection, which: ColumnElement[bool]) -> Mapping[str, DocumentCounts]:
    """Counts documents by their collections and states, in one query."""
    documents = tables.documents.c
    asked = select(documents.collection_id, documents.state, func.count()).where(which, IS_SHOWN)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(asked.group_by(documents.collection_id, documents.state)):
        found.setdefault(row[0], {})[row[1]] = row[2]
    return {collection_id: DocumentCounts(**counts) for collection_id, counts in found.items()}


def _seen_by(known: Authenticated) -> Any:
    """Selects the collections that the user may search in, with the user's sealed key of each."""
    collections, members = tables.collections, tables.collection_members
    asked = select(collections, members.c.wrapped_key).join_from(collections, members)
    return asked.where(members.c.user_id == known.identity.user_id, collections.c.state == "ready")


def _context(collection_id: str, user_id: str) -> str:
    return f"key of {collection_id} for {user_id}"
