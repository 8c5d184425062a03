"""The part of the accounts service that stores collections of documents. Methods return Refusals.

Names and passages are sealed and opened by the ingress.
"""

from collections.abc import Sequence

from app.accounts.answering import Answering
from app.messages.accounts import Refusal
from app.messages.knowledge import (
    DocumentState,
    NewDocument,
    PassagesPart,
    StoredCollection,
    StoredDocument,
    StoredFileBatch,
)


class CollectionService(Answering):
    """The methods do what `app.messages.knowledge.CollectionStore` says."""

    async def new_collection(
        self, secret: str, collection_id: str, key: bytes, sealed: bytes
    ) -> StoredCollection | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.new(secret, collection_id, key, sealed))

    async def collections(
        self, secret: str, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredCollection] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.listed(secret, after, limit, newest_first=newest_first))

    async def collection(self, secret: str, collection_id: str) -> StoredCollection | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.get(secret, collection_id))

    async def change_collection(self, secret: str, collection_id: str, sealed: bytes) -> StoredCollection | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.change(secret, collection_id, sealed))

    async def delete_collection(self, secret: str, collection_id: str, with_files: bool = False) -> Refusal | None:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.delete(secret, collection_id, with_files=with_files))

    async def collection_members(self, secret: str, collection_id: str) -> Sequence[str] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.members(secret, collection_id))

    async def share_collection(self, secret: str, collection_id: str, names: Sequence[str]) -> Sequence[str] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.share(secret, collection_id, names))

    async def add_documents(
        self, secret: str, collection_id: str, batch_id: str | None, documents: Sequence[NewDocument]
    ) -> Sequence[StoredDocument] | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.add(secret, collection_id, batch_id, documents))

    async def keep_documents(self, secret: str, collection_id: str, numbers: Sequence[int]) -> Sequence[int] | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.keep(secret, collection_id, numbers))

    async def add_passages(
        self, secret: str, collection_id: str, number: int, parts: Sequence[PassagesPart]
    ) -> Refusal | None:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.add_passages(secret, collection_id, number, parts))

    async def end_document(
        self, secret: str, collection_id: str, number: int, state: DocumentState, sealed: bytes
    ) -> StoredDocument | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.end(secret, collection_id, number, state, sealed))

    async def documents(
        self,
        secret: str,
        collection_id: str,
        after: str | None,
        limit: int,
        newest_first: bool,
        batch_id: str | None = None,
    ) -> Sequence[StoredDocument] | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(
            lambda: stored.listed(secret, collection_id, after, limit, newest_first=newest_first, batch=batch_id)
        )

    async def document(self, secret: str, collection_id: str, file_id: str) -> StoredDocument | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.get(secret, collection_id, file_id))

    async def passages(
        self, secret: str, collection_id: str, number: int, after: int
    ) -> Sequence[PassagesPart] | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.passages(secret, collection_id, number, after))

    async def delete_document(
        self, secret: str, collection_id: str, file_id: str, with_file: bool = False
    ) -> Refusal | None:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.delete(secret, collection_id, file_id, with_file=with_file))

    async def file_batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.batch(secret, collection_id, batch_id))

    async def cancel_file_batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch | Refusal:
        stored = self._accounts.stored_documents
        return await self._answer(lambda: stored.cancel(secret, collection_id, batch_id))
