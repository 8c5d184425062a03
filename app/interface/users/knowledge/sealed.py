"""A user's collections in plain text: sealed here before they go to the accounts, opened here.

Each record is sealed with its collection's id and its own, so that none opens in place of another. What is known of a
document is sealed under its collection's key, and has the key of its passages in it: deleting the document destroys
that key at once, while its passages are deleted in steps. Knows neither HTTP nor how passages are found.
"""

import asyncio
import base64
import os
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from app.interface.users.texts import damaged
from app.knowledge.passages import Passage, Vectors, in_parts, read, written
from app.messages.accounts import Identity
from app.messages.knowledge import (
    PASSAGES_BYTES,
    CollectionStore,
    DocumentChoice,
    DocumentState,
    NewDocument,
    PassagesPart,
    StoredCollection,
    StoredDocument,
    StoredFileBatch,
    key_purpose,
)
from app.sealing.records import SealError, seal, unseal

_KEY_BYTES: Final = 32
_KEY: Final = "key"
"""Of a document's passages, in what is known of it; those that were read before there was one are sealed under the
collection's."""
AT_ONCE: Final = 100
"""Documents in one part of a list."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection with what it is called."""

    stored: StoredCollection
    key: bytes = field(repr=False)
    about: Mapping[str, Any] = field(repr=False)
    """`name`, `description`, `metadata`."""


@dataclass(frozen=True, slots=True)
class CollectedDocument:
    """A document of a collection."""

    stored: StoredDocument
    about: Mapping[str, Any] = field(repr=False)
    """`attributes`; once it was read `name`, `notes`, `pages`, `passages` and `encoder`, the identity of what made its
    vectors; if it could not be, `error`, a code and a message, and `name` if its file was found. `key`: of its
    passages."""
    former: Mapping[str, Any] | None = field(default=None, repr=False)
    """Of one that was just added: what is known of the document in whose place it comes once it is read."""

    @property
    def name(self) -> str:
        return str(self.about.get("name", ""))

    @property
    def place(self) -> str:
        """What tells it from others: its path if its attributes have one, otherwise its name."""
        return str((self.about.get("attributes") or {}).get("path") or self.name)


class Collections:
    """The collections that a credential's user may search in.

    Methods raise AccountsError, and ApiError (500) if what is stored is damaged.
    """

    def __init__(self, store: CollectionStore, identity: Identity, secret: str) -> None:
        self._store = store
        self._secret = secret
        self._texts_key = identity.texts_key
        self.user_id = identity.user_id

    # --- collections

    async def new(self, about: Mapping[str, Any]) -> Collection:
        """Makes an empty collection."""
        collection_id, key = f"vs_{uuid.uuid4().hex}", os.urandom(_KEY_BYTES)
        sealed = _sealed_about(key, collection_id, about)
        return self._opened(await self._store.new_collection(self._secret, collection_id, key, sealed))

    async def listed(self, after: str | None, limit: int, *, newest_first: bool) -> Sequence[Collection]:
        found = await self._store.collections(self._secret, after=after, limit=limit, newest_first=newest_first)
        return [self._opened(one) for one in found]

    async def get(self, collection_id: str) -> Collection:
        return self._opened(await self._store.collection(self._secret, collection_id))

    async def change(self, collection: Collection, about: Mapping[str, Any]) -> Collection:
        collection_id = collection.stored.id
        sealed = _sealed_about(collection.key, collection_id, about)
        return self._opened(await self._store.change_collection(self._secret, collection_id, sealed))

    async def delete(self, collection_id: str, *, with_files: bool) -> None:
        await self._store.delete_collection(self._secret, collection_id, with_files=with_files)

    async def members(self, collection_id: str) -> Sequence[str]:
        return await self._store.collection_members(self._secret, collection_id)

    async def share(self, collection_id: str, names: Sequence[str]) -> Sequence[str]:
        return await self._store.share_collection(self._secret, collection_id, names)

    # --- documents

    async def add(
        self, collection: Collection, documents: Mapping[str, Mapping[str, Any]], *, batch_id: str | None = None
    ) -> Sequence["ReadDocument"]:
        """Begins to read documents: their file ids, each with what is known of it."""
        new = list[NewDocument]()
        for file_id, about in documents.items():
            key = base64.b64encode(os.urandom(_KEY_BYTES)).decode()
            new.append(NewDocument(file_id, _sealed_document(collection, file_id, {**about, _KEY: key})))
        added = await self._store.add_documents(self._secret, collection.stored.id, batch_id, new)
        return [
            ReadDocument(self._store, self._secret, collection, self._opened_document(collection, one)) for one in added
        ]

    async def keep(self, collection: Collection, numbers: Sequence[int]) -> Sequence[int]:
        """Prolongs the lease of documents; returns those that are still to be read."""
        return await self._store.keep_documents(self._secret, collection.stored.id, numbers)

    async def documents(
        self,
        collection: Collection,
        after: str | None,
        limit: int,
        *,
        newest_first: bool,
        batch_id: str | None = None,
        only: DocumentChoice | None = None,
    ) -> Sequence[CollectedDocument]:
        found = await self._store.documents(
            self._secret,
            collection.stored.id,
            after=after,
            limit=limit,
            newest_first=newest_first,
            batch_id=batch_id,
            only=only,
        )
        return [self._opened_document(collection, one) for one in found]

    async def file_batch(self, collection_id: str, batch_id: str) -> StoredFileBatch:
        return await self._store.file_batch(self._secret, collection_id, batch_id)

    async def cancel_file_batch(self, collection_id: str, batch_id: str) -> StoredFileBatch:
        return await self._store.cancel_file_batch(self._secret, collection_id, batch_id)

    async def read_documents(self, collection: Collection) -> AsyncGenerator[CollectedDocument, None]:
        """Yields all documents that have passages, oldest first."""
        after: str | None = None
        while some := await self.documents(collection, after, AT_ONCE, newest_first=False, only="searched"):
            for each in some:
                yield each
            after = some[-1].stored.file_id

    async def document(self, collection: Collection, file_id: str) -> CollectedDocument:
        stored = await self._store.document(self._secret, collection.stored.id, file_id)
        return self._opened_document(collection, stored)

    async def change_document(
        self, collection: Collection, document: CollectedDocument, attributes: Mapping[str, Any]
    ) -> CollectedDocument:
        number, about = document.stored.number, {**document.about, "attributes": attributes}
        sealed = _sealed_document(collection, document.stored.file_id, about)
        changed = await self._store.change_document(self._secret, collection.stored.id, number, sealed)
        return self._opened_document(collection, changed)

    async def delete_document(self, collection_id: str, file_id: str, *, with_file: bool) -> None:
        await self._store.delete_document(self._secret, collection_id, file_id, with_file=with_file)

    async def passages(
        self, collection: Collection, document: CollectedDocument
    ) -> AsyncGenerator[tuple[list[Passage], Vectors | None], None]:
        """Yields a read document's passages, a part at a time."""
        stored, number, after = collection.stored, document.stored.number, -1
        while after + 1 < document.stored.parts:
            if not (parts := await self._store.passages(self._secret, stored.id, number, after)):
                raise damaged(_part_of(stored, number, after + 1))
            for part in parts:
                yield await asyncio.to_thread(_opened_part, collection, document, part)
            after = parts[-1].seq

    # --- internals

    def _opened(self, stored: StoredCollection) -> Collection:
        key = _open(self._texts_key, stored.sealed_key, key_purpose(stored.id))
        return Collection(stored, key, orjson.loads(_open(key, stored.sealed, f"collection {stored.id}")))

    @staticmethod
    def _opened_document(collection: Collection, stored: StoredDocument) -> CollectedDocument:
        key, what = collection.key, _document_of(collection.stored, stored.file_id)
        former = None if stored.former is None else orjson.loads(_open(key, stored.former, what))
        return CollectedDocument(stored, orjson.loads(_open(key, stored.sealed, what)), former)


class ReadDocument:
    """A document that this ingress reads. Methods raise AccountsError: `conflict` if it is not to go on."""

    def __init__(
        self, store: CollectionStore, secret: str, collection: Collection, document: CollectedDocument
    ) -> None:
        self.collection = collection
        self.document = document
        self._store = store
        self._secret = secret
        self._parts = 0
        self.known: dict[str, Any] = {}
        """What became known of it while it was read."""

    async def add(self, passages: Sequence[Passage], vectors: Vectors | None) -> None:
        """Stores the next passages."""
        stored, number = self.collection.stored, self.document.stored.number
        for begin, end in in_parts(passages, PASSAGES_BYTES):
            some = None if vectors is None else Vectors(vectors.codes[begin:end], vectors.scales[begin:end])
            of = self.collection, self.document
            part = await asyncio.to_thread(_sealed_part, *of, self._parts, passages[begin:end], some)
            await self._store.add_passages(self._secret, stored.id, number, [part])
            self._parts += 1

    async def complete(self, about: Mapping[str, Any]) -> None:
        await self._end("completed", {**self.document.about, **self.known, **about})

    async def fail(self, code: str, message: str) -> None:
        """Ends it unread. A former document of the file stays, and has a note of that."""
        former = self.document.former
        if former is None:
            about = {**self.document.about, **self.known, "error": {"code": code, "message": message}}
        else:
            note = f"It could not be read again, and is as before: {message}"
            about = {**former, "notes": [*dict.fromkeys([*(former.get("notes") or ()), note])]}
        await self._end("failed", about)

    async def leave(self) -> None:
        """Ends it unread. A former document of the file stays as it is; without one there is none any more."""
        collection_id, file_id = self.collection.stored.id, self.document.stored.file_id
        if self.document.former is None:
            await self._store.delete_document(self._secret, collection_id, file_id, with_file=False)
        else:
            await self._end("failed", self.document.former)

    async def _end(self, state: DocumentState, about: Mapping[str, Any]) -> None:
        collection, document = self.collection, self.document.stored
        sealed = _sealed_document(collection, document.file_id, about)
        await self._store.end_document(self._secret, collection.stored.id, document.number, state, sealed)


def _sealed_about(key: bytes, collection_id: str, about: Mapping[str, Any]) -> bytes:
    return seal(key, orjson.dumps(about), f"collection {collection_id}")


def _sealed_document(collection: Collection, file_id: str, about: Mapping[str, Any]) -> bytes:
    return seal(collection.key, orjson.dumps(about), _document_of(collection.stored, file_id))


def _sealed_part(
    collection: Collection,
    document: CollectedDocument,
    seq: int,
    passages: Sequence[Passage],
    vectors: Vectors | None,
) -> PassagesPart:
    what = _part_of(collection.stored, document.stored.number, seq)
    return PassagesPart(seq, seal(_passages_key(collection, document), written(passages, vectors), what))


def _opened_part(
    collection: Collection, document: CollectedDocument, part: PassagesPart
) -> tuple[list[Passage], Vectors | None]:
    what = _part_of(collection.stored, document.stored.number, part.seq)
    return read(_open(_passages_key(collection, document), part.sealed, what))


def _passages_key(collection: Collection, document: CollectedDocument) -> bytes:
    key = document.about.get(_KEY)
    return collection.key if key is None else base64.b64decode(key)


def _open(key: bytes, sealed: bytes, what: str) -> bytes:
    try:
        return unseal(key, sealed, what)
    except SealError:
        raise damaged(what) from None


def _document_of(stored: StoredCollection, file_id: str) -> str:
    return f"document {stored.id} {file_id}"


def _part_of(stored: StoredCollection, number: int, seq: int) -> str:
    return f"passages {stored.id} {number} {seq}"
