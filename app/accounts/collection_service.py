"""The part of the accounts service that stores collections of documents. Methods return Refusals.

Names and passages are sealed and opened by the ingress.
"""

from collections.abc import Sequence

from app.accounts.answering import Answering
from app.messages.accounts import Refusal
from app.messages.knowledge import DocumentState, PassagesPart, StoredCollection, StoredDocument


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

    async def delete_collection(self, secret: str, collection_id: str) -> Refusal | None:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.delete(secret, collection_id))

    async def collection_members(self, secret: str, collection_id: str) -> Sequence[str] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.members(secret, collection_id))

    async def share_collection(self, secret: str, collection_id: str, names: Sequence[str]) -> Sequence[str] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.share(secret, collection_id, names))

    async def add_document(
        self, secret: str, collection_id: str, file_id: str, sealed: bytes
    ) -> StoredDocument | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.add_document(secret, collection_id, file_id, sealed))

    async def add_passages(
        self, secret: str, collection_id: str, number: int, parts: Sequence[PassagesPart]
    ) -> Refusal | None:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.add_passages(secret, collection_id, number, parts))

    async def end_document(
        self, secret: str, collection_id: str, number: int, state: DocumentState, sealed: bytes
    ) -> StoredDocument | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.end_document(secret, collection_id, number, state, sealed))

    async def documents(
        self, secret: str, collection_id: str, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredDocument] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(
            lambda: stored.documents(secret, collection_id, after, limit, newest_first=newest_first)
        )

    async def document(self, secret: str, collection_id: str, file_id: str) -> StoredDocument | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.document(secret, collection_id, file_id))

    async def passages(
        self, secret: str, collection_id: str, number: int, after: int
    ) -> Sequence[PassagesPart] | Refusal:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.passages(secret, collection_id, number, after))

    async def delete_document(self, secret: str, collection_id: str, file_id: str) -> Refusal | None:
        stored = self._accounts.stored_collections
        return await self._answer(lambda: stored.delete_document(secret, collection_id, file_id))
