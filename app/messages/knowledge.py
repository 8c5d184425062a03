"""Users' collections of documents, as messages between an ingress and the accounts. Frozen and picklable.

A collection has a key of its own, which the accounts keep sealed for each user who may search in it. The ingress seals
names and passages under that key before it hands them over: the accounts and Ray see ids, sizes, times and states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

DocumentState = Literal["in_progress", "completed", "failed", "cancelled"]
DocumentChoice = DocumentState | Literal["searched", "abandoned"]
"""Which documents are listed: those of a state; those that have passages; those in progress that no ingress reads any
more."""
READ_LEASE_S: Final = 20
"""How long an ingress has a document that it reads, unless `keep_documents` or `add_passages` prolongs it; later
another may begin again."""
PASSAGES_BYTES: Final = 1 << 20
"""About the most of passages in one part."""


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """How many documents there are, by state."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class StoredCollection:
    """A collection without its documents."""

    id: str
    created: int
    """Unix seconds."""
    is_mine: bool
    """Whether the user owns it. Others may only search in it."""
    changes: int
    """Rises with each change of its documents."""
    counts: DocumentCounts
    sealed_bytes: int
    sealed_key: bytes = field(repr=False)
    """The 32 bytes under which its texts are sealed, themselves sealed under the asking user's `texts_key` for
    `key_purpose`: a list of collections is large enough for Ray's store, which may spill to disk."""
    sealed: bytes = field(repr=False)
    """Its name and metadata."""


def key_purpose(collection_id: str) -> str:
    """Returns for what `StoredCollection.sealed_key` is sealed."""
    return f"key of collection {collection_id}"


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document of a collection."""

    file_id: str
    number: int
    """In its collection, rising; not used again. A document that is read once more, or was not read, gets another."""
    created: int
    """Unix seconds."""
    state: DocumentState
    is_abandoned: bool
    """Whether it is in progress and no ingress reads it any more."""
    sealed_bytes: int
    parts: int
    sealed: bytes = field(repr=False)
    """Its name, and what else is known of it."""
    former: bytes | None = field(default=None, repr=False)
    """Of one that was just added: what is known of the document in whose place it comes once it is read."""


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document to add."""

    file_id: str
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredFileBatch:
    """Documents that were added together."""

    id: str
    created: int
    """Unix seconds."""
    counts: DocumentCounts
    is_abandoned: bool
    """Whether one of them is in progress and no ingress reads it any more."""


@dataclass(frozen=True, slots=True)
class PassagesPart:
    """Some passages of a document, sealed together."""

    seq: int
    sealed: bytes = field(repr=False)


class CollectionStore(Protocol):
    """The ingress' interface to users' collections.

    Every method raises AccountsError; `secret` is a key or session token, and what the user may not see is `not_found`.
    Changes are refused with `owner_only` to those with whom a collection is shared.
    """

    async def new_collection(self, secret: str, collection_id: str, key: bytes, sealed: bytes) -> StoredCollection:
        """Makes a collection; once more, the same one. Refuses with `insufficient_quota`."""

    async def collections(
        self, secret: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredCollection]:
        """Lists the user's own collections and those that are shared with the user. after: the one before the first."""

    async def collection(self, secret: str, collection_id: str) -> StoredCollection: ...

    async def change_collection(self, secret: str, collection_id: str, sealed: bytes) -> StoredCollection:
        """Replaces its name and metadata."""

    async def delete_collection(self, secret: str, collection_id: str, *, with_files: bool) -> None:
        """Destroys its keys, and then its passages. with_files: the owner's files that it was read from, too."""

    async def collection_members(self, secret: str, collection_id: str) -> Sequence[str]:
        """Returns the names of the users with whom it is shared."""

    async def share_collection(self, secret: str, collection_id: str, names: Sequence[str]) -> Sequence[str]:
        """Shares it with these users and no others. Only administrators share it with somebody new.

        Refuses a name that no user has with `invalid_value`, and a user without a key to share with by `conflict`; the
        message names the user.
        """

    async def add_documents(
        self, secret: str, collection_id: str, batch_id: str | None, documents: Sequence[NewDocument]
    ) -> Sequence[StoredDocument]:
        """Adds documents that this ingress reads now, for `READ_LEASE_S`, all or none.

        A completed document of the same file is searched until the new one is; if that can't be read, it stays.
        batch_id: of those that are added together; None: there is none, and a document that was in one stays there.
        Refuses with `conflict` while another reads one of them, and with `insufficient_quota`.
        """

    async def keep_documents(self, secret: str, collection_id: str, numbers: Sequence[int]) -> Sequence[int]:
        """Prolongs the lease of documents that wait to be read or are being read, and returns those of them.

        The others were deleted or cancelled, or begun again.
        """

    async def add_passages(self, secret: str, collection_id: str, number: int, parts: Sequence[PassagesPart]) -> None:
        """Adds passages, and prolongs the lease. Refuses with `conflict` if `keep_documents` would not return it."""

    async def end_document(
        self, secret: str, collection_id: str, number: int, state: DocumentState, sealed: bytes
    ) -> StoredDocument:
        """Ends the reading; but for `completed` its passages are deleted, and a former document is in its place again.

        sealed: what is known of what is there then. Refuses as `add_passages` does.
        """

    async def change_document(self, secret: str, collection_id: str, number: int, sealed: bytes) -> StoredDocument:
        """Replaces what is known of a document. Refuses with `conflict` while it is read."""

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
        """Lists documents in the order in which they were added first.

        after: the file id of the one before the first. batch_id: only those of a batch. only: None: all.
        """

    async def document(self, secret: str, collection_id: str, file_id: str) -> StoredDocument: ...

    async def passages(self, secret: str, collection_id: str, number: int, after: int) -> Sequence[PassagesPart]:
        """Returns the next parts of a completed document after `after` (-1: from the first); empty: there are none."""

    async def delete_document(self, secret: str, collection_id: str, file_id: str, *, with_file: bool) -> None: ...

    async def file_batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch: ...

    async def cancel_file_batch(self, secret: str, collection_id: str, batch_id: str) -> StoredFileBatch:
        """Cancels those of its documents that are not read yet: what was stored of them is deleted."""
