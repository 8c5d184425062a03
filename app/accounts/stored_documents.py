"""The documents of collections and their passages, which arrive sealed and stay so.

A batch of documents is no row of its own: it is the documents that were added with its id and are still there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, insert, select, tuple_, update

from app.accounts import tables
from app.accounts.deleted_rows import hide_documents_files
from app.accounts.store import Store
from app.accounts.stored_collections import IS_SHOWN, StoredCollections, counts_of
from app.accounts.stored_conversations import check_id, known_id
from app.accounts.stored_files import StoredFiles
from app.messages.accounts import AccountsError
from app.messages.knowledge import (
    PASSAGES_BYTES,
    READ_LEASE_S,
    DocumentChoice,
    DocumentState,
    NewDocument,
    PassagesPart,
    StoredDocument,
    StoredFileBatch,
)

MOST_DOCUMENTS = 10_000
"""The limit per collection."""
_US = 1_000_000


class StoredDocuments:
    """Implements the documents of `app.messages.knowledge.CollectionStore`; every method raises AccountsError."""

    def __init__(self, store: Store, collections: StoredCollections, files: StoredFiles) -> None:
        self._store = store
        self._collections = collections
        self._files = files

    def add(
        self, secret: str, collection_id: str, batch_id: str | None, new: Sequence[NewDocument]
    ) -> Sequence[StoredDocument]:
        for one in new:
            check_id(one.file_id)
        if batch_id is not None:
            check_id(batch_id)
        with self._store.transaction() as connection:
            known = self._collections.known(connection, secret)
            row = self._collections.owned(connection, known, collection_id)
            documents, now_s = tables.documents.c, self._store.now()
            there = (documents.collection_id == row.id) & IS_SHOWN
            of_files = documents.file_id.in_([one.file_id for one in new])
            before = {
                each.file_id: each for each in connection.execute(select(tables.documents).where(there, of_files))
            }
            if any(each.state == "in_progress" and each.leased_until > now_s for each in before.values()):
                raise AccountsError("conflict", "That document is being read already.")
            count = connection.execute(select(func.count()).select_from(tables.documents).where(there)).scalar_one()
            if count + len(new) - len(before) > MOST_DOCUMENTS:
                message = f"A collection has at most {MOST_DOCUMENTS:,} documents, and this one {count:,} already."
                raise AccountsError("insufficient_quota", message)
            more = sum(len(one.sealed) for one in new)
            unread = [each for each in before.values() if each.state != "completed"]
            self._files.check_room(connection, known, more - sum(each.bytes for each in unread))
            for each in unread:
                self._hide(connection, row.id, each)
            of_read = there & of_files & (documents.state == "completed")
            connection.execute(update(tables.documents).where(of_read).values(state="former"))
            values = list[dict[str, Any]]()
            for place, one in enumerate(new):
                old = before.get(one.file_id)
                if old is None:
                    self._store.note(connection, known.identity.user_id, "add_document", row.id)
                values.append({
                    "collection_id": row.id,
                    "number": row.changes + place,
                    "file_id": one.file_id,
                    "state": "in_progress",
                    "created_us": int(now_s * _US) + place if old is None else old.created_us,
                    "leased_until": int(now_s) + READ_LEASE_S,
                    "parts": 0,
                    "bytes": len(one.sealed),
                    "sealed": one.sealed,
                    "batch_id": batch_id if old is None else batch_id or old.batch_id,
                })  # fmt: skip
            connection.execute(insert(tables.documents), values)
            columns = tables.collections.c
            self._collections.set(connection, row.id, changes=row.changes + len(new), bytes=columns.bytes + more)
            added = (documents.collection_id == row.id) & (documents.number >= row.changes)
            found = connection.execute(select(tables.documents).where(added).order_by(documents.number)).all()
            former = self._former(connection, row.id, [each.file_id for each in found])
            return [self._document(each, former.get(each.file_id)) for each in found]

    def keep(self, secret: str, collection_id: str, numbers: Sequence[int]) -> Sequence[int]:
        with self._store.transaction() as connection:
            row = self._collections.owned(connection, self._collections.known(connection, secret), collection_id)
            documents = tables.documents.c
            them = (documents.collection_id == row.id) & documents.number.in_(numbers)
            them &= documents.state == "in_progress"
            until = int(self._store.now()) + READ_LEASE_S
            connection.execute(update(tables.documents).where(them).values(leased_until=until))
            return connection.execute(select(documents.number).where(them)).scalars().all()

    def add_passages(self, secret: str, collection_id: str, number: int, parts: Sequence[PassagesPart]) -> None:
        with self._store.transaction() as connection:
            known = self._collections.known(connection, secret)
            row = self._collections.owned(connection, known, collection_id)
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
                self._set(connection, row.id, number, parts=document.parts + len(parts), bytes=document.bytes + more)
                self._collections.set(connection, row.id, bytes=tables.collections.c.bytes + more)
            self._set(connection, row.id, number, leased_until=int(self._store.now()) + READ_LEASE_S)

    def end(self, secret: str, collection_id: str, number: int, state: DocumentState, sealed: bytes) -> StoredDocument:
        with self._store.transaction() as connection:
            known = self._collections.known(connection, secret)
            row = self._collections.owned(connection, known, collection_id)
            document = self._being_read(connection, row.id, number)
            if state == "completed":
                for each in self._former(connection, row.id, [document.file_id]).values():
                    self._hide(connection, row.id, each)
                self._set(connection, row.id, number, state=state)
                self._replace(connection, row.id, document, sealed)
            else:
                self._end_unread(connection, row, [document], state, sealed)
            return self._document(self._of_file(connection, row.id, document.file_id))

    def change(self, secret: str, collection_id: str, number: int, sealed: bytes) -> StoredDocument:
        with self._store.transaction() as connection:
            known = self._collections.known(connection, secret)
            row = self._collections.owned(connection, known, collection_id)
            document = self._row(connection, row.id, tables.documents.c.number == number)
            if document.state == "in_progress":
                raise AccountsError("conflict", "The document is being read: change it afterwards.")
            self._files.check_room(connection, known, len(sealed) - len(document.sealed))
            self._replace(connection, row.id, document, sealed)
            return self._document(self._row(connection, row.id, tables.documents.c.number == number))

    def listed(
        self,
        secret: str,
        collection_id: str,
        after: str | None,
        limit: int,
        newest_first: bool,
        batch_id: str | None = None,
        only: DocumentChoice | None = None,
    ) -> Sequence[StoredDocument]:
        with self._store.transaction() as connection:
            row = self._collections.seen(connection, self._collections.known(connection, secret), collection_id)
            documents = tables.documents.c
            order = (documents.created_us, documents.file_id)  # the same if it is read again
            asked = select(tables.documents).where(documents.collection_id == row.id, self._chosen(only))
            if batch_id is not None:
                self._batch(connection, row.id, batch_id)
                asked = asked.where(documents.batch_id == batch_id)
            if after is not None:
                before = self._row(connection, row.id, documents.file_id == known_id(after), param="after")
                place, last = tuple_(*order), tuple_(before.created_us, before.file_id)
                asked = asked.where(place < last if newest_first else place > last)
            asked = asked.order_by(*(column.desc() if newest_first else column for column in order))
            return [self._document(each) for each in connection.execute(asked.limit(max(0, limit)))]

    def get(self, secret: str, collection_id: str, file_id: str) -> StoredDocument:
        with self._store.transaction() as connection:
            row = self._collections.seen(connection, self._collections.known(connection, secret), collection_id)
            return self._document(self._of_file(connection, row.id, file_id))

    def passages(self, secret: str, collection_id: str, number: int, after: int) -> Sequence[PassagesPart]:
        with self._store.transaction() as connection:
            row = self._collections.seen(connection, self._collections.known(connection, secret), collection_id)
            documents, passages = tables.documents.c, tables.passages.c
            is_it = (documents.collection_id == row.id) & (documents.number == number) & self._chosen("searched")
            if connection.execute(select(documents.number).where(is_it)).first() is None:
                raise _no_such_document()
            of_document = (passages.collection_id == row.id) & (passages.number == number) & (passages.seq > after)
            found = list[PassagesPart]()
            taken = 0
            for each in connection.execute(select(tables.passages).where(of_document).order_by(passages.seq)):
                if found and taken + len(each.sealed) > PASSAGES_BYTES:
                    break
                found.append(PassagesPart(each.seq, each.sealed))
                taken += len(each.sealed)
            return found

    def delete(self, secret: str, collection_id: str, file_id: str, with_file: bool = False) -> None:
        with self._store.transaction() as connection:
            known = self._collections.known(connection, secret)
            row = self._collections.owned(connection, known, collection_id)
            document = self._of_file(connection, row.id, file_id)
            if with_file:
                documents = tables.documents.c
                is_it = (documents.collection_id == row.id) & (documents.number == document.number)
                hide_documents_files(connection, row.user_id, is_it)
            for each in (document, *self._former(connection, row.id, [document.file_id]).values()):
                self._hide(connection, row.id, each)
            self._collections.set(connection, row.id, changes=tables.collections.c.changes + 1)
            self._store.note(connection, known.identity.user_id, "delete_document", row.id)

    # --- batches

    def batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch:
        with self._store.transaction() as connection:
            row = self._collections.seen(connection, self._collections.known(connection, secret), collection_id)
            return self._batch(connection, row.id, batch_id)

    def cancel(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch:
        with self._store.transaction() as connection:
            row = self._collections.owned(connection, self._collections.known(connection, secret), collection_id)
            self._batch(connection, row.id, batch_id)
            documents = tables.documents.c
            unread = (documents.collection_id == row.id) & (documents.batch_id == batch_id)
            unread &= documents.state == "in_progress"
            found = connection.execute(select(tables.documents).where(unread)).all()
            self._end_unread(connection, row, found, "cancelled")
            return self._batch(connection, row.id, batch_id)

    def _batch(self, connection: Connection, collection_id: str, batch_id: str) -> StoredFileBatch:
        documents = tables.documents.c
        of_batch = (documents.collection_id == collection_id) & (documents.batch_id == known_id(batch_id))
        of_batch &= IS_SHOWN
        created = connection.execute(select(func.max(documents.created_us)).where(of_batch)).scalar_one()
        if created is None:
            raise AccountsError("not_found", "There is no such batch in the collection.")
        abandoned = select(documents.number).where(of_batch, self._chosen("abandoned"))
        is_abandoned = connection.execute(abandoned.limit(1)).first()
        counts = counts_of(connection, of_batch)[collection_id]
        return StoredFileBatch(batch_id, created // _US, counts, is_abandoned is not None)

    # --- internals

    def _document(self, row: Row[Any], former: Row[Any] | None = None) -> StoredDocument:
        return StoredDocument(
            file_id=row.file_id,
            number=row.number,
            created=row.created_us // _US,
            state="completed" if row.state == "former" else row.state,
            is_abandoned=row.state == "in_progress" and row.leased_until <= self._store.now(),
            sealed_bytes=row.bytes,
            parts=row.parts,
            sealed=row.sealed,
            former=None if former is None else former.sealed,
        )

    def _chosen(self, only: DocumentChoice | None) -> ColumnElement[bool]:
        documents = tables.documents.c
        match only:
            case None:
                return IS_SHOWN
            case "searched":
                return documents.state.in_(("completed", "former"))
            case "abandoned":
                return (documents.state == "in_progress") & (documents.leased_until <= self._store.now())
            case _:
                return documents.state == only

    @staticmethod
    def _former(connection: Connection, collection_id: str, file_ids: Sequence[str]) -> Mapping[str, Row[Any]]:
        """Finds documents in whose place others come that are not read yet, by file."""
        documents = tables.documents.c
        is_former = (documents.collection_id == collection_id) & (documents.state == "former")
        found = connection.execute(select(tables.documents).where(is_former, documents.file_id.in_(file_ids)))
        return {each.file_id: each for each in found}

    def _of_file(self, connection: Connection, collection_id: str, file_id: str) -> Row[Any]:
        return self._row(connection, collection_id, tables.documents.c.file_id == known_id(file_id))

    @staticmethod
    def _row(
        connection: Connection, collection_id: str, which: ColumnElement[bool], param: str | None = None
    ) -> Row[Any]:
        documents = tables.documents.c
        found = and_(documents.collection_id == collection_id, IS_SHOWN, which)
        row = connection.execute(select(tables.documents).where(found)).one_or_none()
        if row is None:
            raise _no_such_document(param)
        return row

    @staticmethod
    def _being_read(connection: Connection, collection_id: str, number: int) -> Row[Any]:
        documents = tables.documents.c
        is_it = (documents.collection_id == collection_id) & (documents.number == number)
        row = connection.execute(select(tables.documents).where(is_it)).one_or_none()
        if row is None or row.state != "in_progress":
            raise AccountsError("conflict", "The document was deleted or cancelled meanwhile, or is read anew.")
        return row

    def _hide(self, connection: Connection, collection_id: str, document: Row[Any]) -> None:
        """Deletes a document: nobody finds it any more, and `StoredCollections.destroy_some` destroys its passages."""
        self._set(connection, collection_id, document.number, state="deleted", sealed=None)
        self._collections.set(connection, collection_id, bytes=tables.collections.c.bytes - document.bytes)

    def _end_unread(
        self,
        connection: Connection,
        collection: Row[Any],
        unread: Sequence[Row[Any]],
        state: DocumentState,
        sealed: bytes | None = None,
    ) -> None:
        """Ends documents that were not read: their passages are deleted, and former documents are in their place again.

        sealed: what is known of what is there then; None: as before.
        """
        values = list[dict[str, Any]]()
        former = self._former(connection, collection.id, [one.file_id for one in unread])
        for number, one in enumerate(unread, collection.changes):
            self._hide(connection, collection.id, one)
            if (old := former.get(one.file_id)) is not None:
                self._set(connection, collection.id, old.number, state="completed", batch_id=one.batch_id)
                self._replace(connection, collection.id, old, sealed or old.sealed)
                continue
            known = sealed or one.sealed
            ended = {"number": number, "state": state, "parts": 0, "bytes": len(known), "sealed": known}
            values.append({**one._asdict(), **ended})
        if values:
            connection.execute(insert(tables.documents), values)
        columns = tables.collections.c
        changes, more = collection.changes + len(unread), sum(one["bytes"] for one in values)
        self._collections.set(connection, collection.id, changes=changes, bytes=columns.bytes + more)

    def _replace(self, connection: Connection, collection_id: str, document: Row[Any], sealed: bytes) -> None:
        """Replaces what is known of a document, which is a change of its collection."""
        more, columns = len(sealed) - len(document.sealed), tables.collections.c
        self._set(connection, collection_id, document.number, sealed=sealed, bytes=document.bytes + more)
        self._collections.set(connection, collection_id, changes=columns.changes + 1, bytes=columns.bytes + more)

    @staticmethod
    def _set(connection: Connection, collection_id: str, number: int, **values: Any) -> None:
        documents = tables.documents.c
        is_it = (documents.collection_id == collection_id) & (documents.number == number)
        connection.execute(update(tables.documents).where(is_it).values(**values))


def _no_such_document(param: str | None = None) -> AccountsError:
    return AccountsError("not_found", "There is no such document in the collection.", param=param)
