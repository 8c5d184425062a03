"""The ingress' client of users' files and batches. Texts are sealed, because Ray may spill large ones to disk."""

from collections.abc import Sequence

from app.controller.accounts_handle import AccountsHandle
from app.messages.batches import (
    BatchState,
    ClaimedBatch,
    FilePart,
    LineResult,
    NewBatch,
    StoredBatch,
    StoredFile,
    UploadPurpose,
)


class ServeBatchStore(AccountsHandle):
    """Implements `app.messages.batches.BatchStore`, which documents the methods, over a Serve handle."""

    async def new_file(self, secret: str, file_id: str) -> None:
        await self._call(object, "new_file", secret, file_id)

    async def add_part(self, secret: str, file_id: str, part: FilePart) -> None:
        await self._call(object, "add_part", secret, file_id, part)

    async def finish_file(
        self, secret: str, file_id: str, sealed: bytes, seconds: int | None, purpose: UploadPurpose
    ) -> StoredFile:
        return await self._call(StoredFile, "finish_file", secret, file_id, sealed, seconds, purpose)

    async def files(
        self, secret: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredFile]:
        return await self._call(list[StoredFile], "files", secret, purpose, after, limit, newest_first)

    async def file(self, secret: str, file_id: str) -> StoredFile:
        return await self._call(StoredFile, "file", secret, file_id)

    async def parts(self, secret: str, file_id: str, after: int) -> Sequence[FilePart]:
        return await self._call(list[FilePart], "parts", secret, file_id, after)

    async def delete_file(self, secret: str, file_id: str) -> None:
        await self._call(object, "delete_file", secret, file_id)

    async def new_batch(self, secret: str, batch: NewBatch) -> StoredBatch:
        return await self._call(StoredBatch, "new_batch", secret, batch)

    async def batches(self, secret: str, *, after: str | None, limit: int) -> Sequence[StoredBatch]:
        return await self._call(list[StoredBatch], "batches", secret, after, limit)

    async def batch(self, secret: str, batch_id: str) -> StoredBatch:
        return await self._call(StoredBatch, "batch", secret, batch_id)

    async def cancel_batch(self, secret: str, batch_id: str) -> StoredBatch:
        return await self._call(StoredBatch, "cancel_batch", secret, batch_id)

    async def claim_batches(self, most: int) -> Sequence[ClaimedBatch]:
        return await self._call(list[ClaimedBatch], "claim_batches", most)

    async def keep_batch(self, secret: str, batch_id: str, claim: int) -> StoredBatch:
        return await self._call(StoredBatch, "keep_batch", secret, batch_id, claim)

    async def leave_batch(self, secret: str, batch_id: str, claim: int) -> None:
        await self._call(object, "leave_batch", secret, batch_id, claim)

    async def start_batch(self, secret: str, batch_id: str, claim: int, total: int, sealed: bytes) -> StoredBatch:
        return await self._call(StoredBatch, "start_batch", secret, batch_id, claim, total, sealed)

    async def done_lines(self, secret: str, batch_id: str, after: int) -> Sequence[int]:
        return await self._call(list[int], "done_lines", secret, batch_id, after)

    async def add_results(self, secret: str, batch_id: str, claim: int, results: Sequence[LineResult]) -> StoredBatch:
        return await self._call(StoredBatch, "add_results", secret, batch_id, claim, results)

    async def finalize_batch(self, secret: str, batch_id: str, claim: int) -> StoredBatch:
        return await self._call(StoredBatch, "finalize_batch", secret, batch_id, claim)

    async def end_batch(
        self, secret: str, batch_id: str, claim: int, state: BatchState, sealed: bytes, names: tuple[bytes, bytes]
    ) -> StoredBatch:
        return await self._call(StoredBatch, "end_batch", secret, batch_id, claim, state, sealed, names)
