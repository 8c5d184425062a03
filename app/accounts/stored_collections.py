"""Users' collections of documents, for the user of a credential. Names and passages arrive sealed and stay so.

A collection's key is sealed for its owner under the user's key, and for everybody with whom it is shared under that
user's public key (sharing.py). Deleting destroys these first; the passages go in small steps afterwards.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, delete, func, insert, select, tuple_, update

from app.accounts import tables
from app.accounts.credentials import normalized_name
from app.accounts.deleted_rows import hide_collections
from app.accounts.logins import Authenticated, Logins
from app.accounts.sharing import sealed_for
from app.accounts.store import Actor, Store
from app.accounts.stored_conversations import check_id, known_id
from app.accounts.stored_files import StoredFiles
from app.accounts.users import check_admin
from app.messages.accounts import AccountsError
from app.messages.knowledge import (
    PASSAGES_BYTES,
    READ_LEASE_S,
    DocumentState,
    PassagesPart,
    StoredCollection,
    StoredDocument,
)

MOST_COLLECTIONS = 1000
"""The limit per owner."""
MOST_DOCUMENTS = 10_000
"""The limit per collection."""
_DELETED_AT_ONCE = 16
_KEY_BYTES = 32
_US = 1_000_000


class StoredCollections:
    """Implements `app.messages.knowledge.CollectionStore`; every method raises AccountsError."""

    def __init__(self, store: Store, logins: Logins, files: StoredFiles) -> None:
        self._store = store
        self._logins = logins
        self._files = files

    # --- collections

    def new(self, secret: str, collection_id: str, key: bytes, sealed: bytes) -> StoredCollection:
        check_id(collection_id)
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            user_id, columns = known.identity.user_id, tables.collections.c
            found = connection.execute(select(columns.user_id).where(columns.id == collection_id)).one_or_none()
            if found is not None and found.user_id == user_id:
                return self._collection(connection, known, self._mine(connection, known, collection_id))
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
            return self._collection(connection, known, self._mine(connection, known, collection_id))

    def listed(self, secret: str, after: str | None, limit: int, *, newest_first: bool) -> Sequence[StoredCollection]:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            columns = tables.collections.c
            asked, place = _seen_by(known), tuple_(columns.created_us, columns.id)
            if after is not None:
                row = self._row(connection, known, after, param="after")
                last = tuple_(row.created_us, row.id)
                asked = asked.where(place < last if newest_first else place > last)
            order = (columns.created_us.desc(), columns.id.desc()) if newest_first else (columns.created_us, columns.id)
            found = connection.execute(asked.order_by(*order).limit(max(0, limit))).all()
            return [self._collection(connection, known, row) for row in found]

    def get(self, secret: str, collection_id: str) -> StoredCollection:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            return self._collection(connection, known, self._row(connection, known, collection_id))

    def change(self, secret: str, collection_id: str, sealed: bytes) -> StoredCollection:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            more = len(sealed) - len(row.sealed)
            self._files.check_room(connection, known, more)
            self._change(connection, row.id, sealed=sealed, bytes=row.bytes + more)
            return self._collection(connection, known, self._mine(connection, known, collection_id))

    def delete(self, secret: str, collection_id: str) -> None:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            hide_collections(connection, tables.collections.c.id == row.id)
            self._store.note(connection, known.identity.user_id, "delete_collection", row.id)

    def members(self, secret: str, collection_id: str) -> Sequence[str]:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            return self._member_names(connection, self._mine(connection, known, collection_id))

    def share(self, secret: str, collection_id: str, names: Sequence[str]) -> Sequence[str]:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            check_admin(Actor(row.user_id, known.identity.role))
            key = self._opened_key(known, row)
            wanted = dict[str, bytes]()
            for name in names:
                user = self._store.user_of_name(connection, normalized_name(name))
                if user is None:
                    raise AccountsError("not_found", f"There is no user {name}.", param="users")
                if user.sharing_key is None:
                    message = f"{name} has no key to share with yet: the user has to log in once."
                    raise AccountsError("conflict", message, param="users")
                if user.id != row.user_id:
                    wanted[user.id] = sealed_for(user.sharing_key, key, _context(row.id, user.id))
            members = tables.collection_members.c
            others = (members.collection_id == row.id) & (members.user_id != row.user_id)
            connection.execute(delete(tables.collection_members).where(others))
            for user_id, wrapped in wanted.items():
                member = {"collection_id": row.id, "user_id": user_id, "wrapped_key": wrapped}
                connection.execute(insert(tables.collection_members).values(**member))
            self._store.note(connection, known.identity.user_id, "share_collection", row.id)
            return self._member_names(connection, row)

    # --- documents

    def add_document(self, secret: str, collection_id: str, file_id: str, sealed: bytes) -> StoredDocument:
        check_id(file_id)
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            documents, now_s = tables.documents.c, self._store.now()
            of_file = (documents.collection_id == row.id) & (documents.file_id == file_id)
            there = (documents.collection_id == row.id) & (documents.state != "deleted")
            former = connection.execute(select(tables.documents).where(of_file & there)).one_or_none()
            if former is not None and former.state == "in_progress" and former.leased_until > now_s:
                raise AccountsError("conflict", "That document is being read already.")
            count = connection.execute(select(func.count()).select_from(tables.documents).where(there)).scalar_one()
            if former is None and count >= MOST_DOCUMENTS:
                message = f"There are {MOST_DOCUMENTS} documents in the collection already: begin another one."
                raise AccountsError("insufficient_quota", message)
            self._files.check_room(connection, known, len(sealed))
            created_us = int(now_s * _US)
            if former is not None:
                created_us = former.created_us
                self._hide(connection, row.id, former)
            number = row.changes
            connection.execute(
                insert(tables.documents).values(
                    collection_id=row.id,
                    number=number,
                    file_id=file_id,
                    state="in_progress",
                    created_us=created_us,
                    leased_until=int(now_s) + READ_LEASE_S,
                    parts=0,
                    bytes=len(sealed),
                    sealed=sealed,
                )
            )
            self._change(connection, row.id, changes=number + 1, bytes=tables.collections.c.bytes + len(sealed))
            if former is None:
                self._store.note(connection, known.identity.user_id, "add_document", row.id)
            return self._document(self._document_row(connection, row.id, documents.number == number))

    def add_passages(self, secret: str, collection_id: str, number: int, parts: Sequence[PassagesPart]) -> None:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            document = self._being_read(connection, row.id, number)
            more = sum(len(part.sealed) for part in parts)
            self._files.check_room(connection, known, more)
            values = [
                {"collection_id": row.id, "number": number, "seq": part.seq, "sealed": part.sealed} for part in parts
            ]
            there = tables.passages.c
            of_document = (there.collection_id == row.id) & (there.number == number)
            again = of_document & there.seq.in_([part.seq for part in parts])
            if values and connection.execute(select(there.seq).where(again).limit(1)).first() is None:
                connection.execute(insert(tables.passages), values)
                self._change_document(
                    connection, row.id, number, parts=document.parts + len(parts), bytes=document.bytes + more
                )
                self._change(connection, row.id, bytes=tables.collections.c.bytes + more)
            self._change_document(connection, row.id, number, leased_until=int(self._store.now()) + READ_LEASE_S)

    def end_document(
        self, secret: str, collection_id: str, number: int, state: DocumentState, sealed: bytes
    ) -> StoredDocument:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            document = self._being_read(connection, row.id, number)
            more = len(sealed) - len(document.sealed)
            self._change_document(connection, row.id, number, state=state, sealed=sealed, bytes=document.bytes + more)
            columns = tables.collections.c
            self._change(connection, row.id, changes=columns.changes + 1, bytes=columns.bytes + more)
            return self._document(self._document_row(connection, row.id, tables.documents.c.number == number))

    def documents(
        self, secret: str, collection_id: str, after: str | None, limit: int, *, newest_first: bool
    ) -> Sequence[StoredDocument]:
        with self._store.transaction() as connection:
            row = self._row(connection, self._known(connection, secret), collection_id)
            documents = tables.documents.c
            place = tuple_(documents.created_us, documents.number)
            asked = select(tables.documents).where(documents.collection_id == row.id, documents.state != "deleted")
            if after is not None:
                before = self._document_row(connection, row.id, documents.file_id == known_id(after), param="after")
                last = tuple_(before.created_us, before.number)
                asked = asked.where(place < last if newest_first else place > last)
            order = (documents.created_us, documents.number)
            asked = asked.order_by(*(column.desc() if newest_first else column for column in order))
            return [self._document(each) for each in connection.execute(asked.limit(max(0, limit)))]

    def document(self, secret: str, collection_id: str, file_id: str) -> StoredDocument:
        with self._store.transaction() as connection:
            row = self._row(connection, self._known(connection, secret), collection_id)
            return self._document(self._of_file(connection, row.id, file_id))

    def passages(self, secret: str, collection_id: str, number: int, after: int) -> Sequence[PassagesPart]:
        with self._store.transaction() as connection:
            row = self._row(connection, self._known(connection, secret), collection_id)
            is_it = (tables.documents.c.number == number) & (tables.documents.c.state == "completed")
            self._document_row(connection, row.id, is_it)
            passages = tables.passages.c
            of_document = (passages.collection_id == row.id) & (passages.number == number) & (passages.seq > after)
            found = list[PassagesPart]()
            taken = 0
            for each in connection.execute(select(tables.passages).where(of_document).order_by(passages.seq)):
                if found and taken + len(each.sealed) > PASSAGES_BYTES:
                    break
                found.append(PassagesPart(each.seq, each.sealed))
                taken += len(each.sealed)
            return found

    def delete_document(self, secret: str, collection_id: str, file_id: str) -> None:
        with self._store.transaction() as connection:
            known = self._known(connection, secret)
            row = self._mine(connection, known, collection_id)
            self._hide(connection, row.id, self._of_file(connection, row.id, file_id))
            self._change(connection, row.id, changes=tables.collections.c.changes + 1)
            self._store.note(connection, known.identity.user_id, "delete_document", row.id)

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

    def _known(self, connection: Connection, secret: str) -> Authenticated:
        """Verifies a credential, and sees to it that others can share with its user."""
        known = self._logins.authenticate(connection, secret)
        mine = tables.users.c.id == known.identity.user_id
        public = connection.execute(select(tables.users.c.sharing_key).where(mine)).scalar_one()
        if public is None:
            values = {"sharing_key": known.key.sharing_key().public()}
            connection.execute(update(tables.users).where(mine).values(**values))
        return known

    @staticmethod
    def _row(connection: Connection, known: Authenticated, collection_id: str, param: str | None = None) -> Row[Any]:
        found = _seen_by(known).where(tables.collections.c.id == known_id(collection_id))
        row = connection.execute(found).one_or_none()
        if row is None:
            raise AccountsError("not_found", "There is no such collection.", param=param)
        return row

    def _mine(self, connection: Connection, known: Authenticated, collection_id: str) -> Row[Any]:
        """Finds a collection that the user may change."""
        row = self._row(connection, known, collection_id)
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
        documents = tables.documents.c
        states = ("in_progress", "completed", "failed")
        counts = [func.coalesce(func.sum(case((documents.state == state, 1), else_=0)), 0) for state in states]
        counted = connection.execute(select(*counts).where(documents.collection_id == row.id)).one()
        return StoredCollection(
            id=row.id,
            created=row.created_us // _US,
            is_mine=row.user_id == known.identity.user_id,
            changes=row.changes,
            in_progress=int(counted[0]),
            completed=int(counted[1]),
            failed=int(counted[2]),
            sealed_bytes=row.bytes,
            key=self._opened_key(known, row),
            sealed=row.sealed,
        )

    def _document(self, row: Row[Any]) -> StoredDocument:
        is_abandoned = row.state == "in_progress" and row.leased_until <= self._store.now()
        return StoredDocument(
            row.file_id, row.number, row.created_us // _US, row.state, is_abandoned, row.bytes, row.parts, row.sealed
        )

    def _of_file(self, connection: Connection, collection_id: str, file_id: str) -> Row[Any]:
        return self._document_row(connection, collection_id, tables.documents.c.file_id == known_id(file_id))

    @staticmethod
    def _document_row(
        connection: Connection, collection_id: str, which: ColumnElement[bool], param: str | None = None
    ) -> Row[Any]:
        documents = tables.documents.c
        found = and_(documents.collection_id == collection_id, documents.state != "deleted", which)
        row = connection.execute(select(tables.documents).where(found)).one_or_none()
        if row is None:
            raise AccountsError("not_found", "There is no such document in the collection.", param=param)
        return row

    def _being_read(self, connection: Connection, collection_id: str, number: int) -> Row[Any]:
        documents = tables.documents.c
        is_it = (documents.collection_id == collection_id) & (documents.number == number)
        row = connection.execute(select(tables.documents).where(is_it)).one_or_none()
        if row is None or row.state != "in_progress":
            raise AccountsError("conflict", "The document was deleted meanwhile, or is read anew.")
        return row

    def _hide(self, connection: Connection, collection_id: str, document: Row[Any]) -> None:
        """Deletes a document: nobody finds it any more, and `destroy_some` destroys its passages."""
        self._change_document(connection, collection_id, document.number, state="deleted", sealed=None)
        self._change(connection, collection_id, bytes=tables.collections.c.bytes - document.bytes)

    @staticmethod
    def _change_document(connection: Connection, collection_id: str, number: int, **values: Any) -> None:
        documents = tables.documents.c
        is_it = (documents.collection_id == collection_id) & (documents.number == number)
        connection.execute(update(tables.documents).where(is_it).values(**values))

    @staticmethod
    def _change(connection: Connection, collection_id: str, **values: Any) -> None:
        connection.execute(update(tables.collections).where(tables.collections.c.id == collection_id).values(**values))

    def _member_names(self, connection: Connection, row: Row[Any]) -> Sequence[str]:
        users, members = tables.users.c, tables.collection_members.c
        others = (members.collection_id == row.id) & (members.user_id != row.user_id)
        found = select(users.id, users.name_sealed).join_from(tables.collection_members, tables.users).where(others)
        root = self._store.root
        return sorted(root.unseal_name(each.name_sealed, each.id) for each in connection.execute(found))


def _seen_by(known: Authenticated) -> Any:
    """Selects the collections that the user may search in, with the user's sealed key of each."""
    collections, members = tables.collections, tables.collection_members
    asked = select(collections, members.c.wrapped_key).join_from(collections, members)
    return asked.where(members.c.user_id == known.identity.user_id, collections.c.state == "ready")


def _context(collection_id: str, user_id: str) -> str:
    return f"key of {collection_id} for {user_id}"
