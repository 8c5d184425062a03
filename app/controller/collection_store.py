"""The ingress' client of users' collections. Texts and keys are sealed, because Ray may spill large answers to disk."""

from collections.abc import Sequence

from app.controller.accounts_handle import AccountsHandle
from app.messages.knowledge import (
    DocumentChoice,
    DocumentState,
    NewDocument,
    PassagesPart,
    StoredCollection,
    StoredDocument,
    StoredFileBatch,
)


class ServeCollectionStore(AccountsHandle):
    """Implements `app.messages.knowledge.CollectionStore`, which documents the methods, over a Serve handle."""

    async def new_collection(self, secret: str, collection_id: str, key: bytes, sealed: bytes) -> StoredCollection:
        return await self._call(StoredCollection, "new_collection", secret, collection_id, key, sealed)

    async def collections(
        self, secret: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredCollection]:
        return await self._call(list[StoredCollection], "collections", secret, after, limit, newest_first)

    async def collection(self, secret: str, collection_id: str) -> StoredCollection:
        return await self._call(StoredCollection, "collection", secret, collection_id)

    async def change_collection(self, secret: str, collection_id: str, sealed: bytes) -> StoredCollection:
        return await self._call(StoredCollection, "change_collection", secret, collection_id, sealed)

    async def delete_collection(self, secret: str, collection_id: str, *, with_files: bool) -> None:
        await self._call(object, "delete_collection", secret, collection_id, with_files)

    async def collection_members(self, secret: str, collection_id: str) -> Sequence[str]:
        return await self._call(list[str], "collection_members", secret, collection_id)

    async def share_collection(self, secret: str, collection_id: str, names: Sequence[str]) -> Sequence[str]:
        return await self._call(list[str], "share_collection", secret, collection_id, names)

    async def add_documents(
        self, secret: str, collection_id: str, batch_id: str | None, documents: Sequence[NewDocument]
    ) -> Sequence[StoredDocument]:
        return await self._call(list[StoredDocument], "add_documents", secret, collection_id, batch_id, documents)

    async def keep_documents(self, secret: str, collection_id: str, numbers: Sequence[int]) -> Sequence[int]:
        return await self._call(list[int], "keep_documents", secret, collection_id, numbers)

    async def add_passages(self, secret: str, collection_id: str, number: int, parts: Sequence[PassagesPart]) -> None:
        await self._call(object, "add_passages", secret, collection_id, number, parts)

    async def end_document(
        self, secret: str, collection_id: str, number: int, state: DocumentState, sealed: bytes
    ) -> StoredDocument:
        return await self._call(StoredDocument, "end_document", secret, collection_id, number, state, sealed)

    async def change_document(self, secret: str, collection_id: str, number: int, sealed: bytes) -> StoredDocument:
        return await self._call(StoredDocument, "change_document", secret, collection_id, number, sealed)

    async def documents(
        self,
        secret: str,
        collection_id: str,
        *,
        after: str | None,
        limit: int,
        newest_first: bool,
        batch_id: str | None = None,
        only: DocumentChoice | None = None,
    ) -> Sequence[StoredDocument]:
        arguments = secret, collection_id, after, limit, newest_first, batch_id, only
        return await self._call(list[StoredDocument], "documents", *arguments)

    async def document(self, secret: str, collection_id: str, file_id: str) -> StoredDocument:
        return await self._call(StoredDocument, "document", secret, collection_id, file_id)

    async def passages(self, secret: str, collection_id: str, number: int, after: int) -> Sequence[PassagesPart]:
        return await self._call(list[PassagesPart], "passages", secret, collection_id, number, after)

    async def delete_document(self, secret: str, collection_id: str, file_id: str, *, with_file: bool) -> None:
        await self._call(object, "delete_document", secret, collection_id, file_id, with_file)

    async def file_batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch:
        return await self._call(StoredFileBatch, "file_batch", secret, collection_id, batch_id)

    async def cancel_file_batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch:
        return await self._call(StoredFileBatch, "cancel_file_batch", secret, collection_id, batch_id)
