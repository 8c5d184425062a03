"""The part of the accounts service that stores files and batches. Methods return Refusals.

Texts are sealed and opened by the ingress.
"""

import asyncio
import time
from collections.abc import Sequence

from app.accounts.answering import Answering
from app.messages.accounts import Refusal
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

_POLL_S = 10.0


class BatchService(Answering):
    """The methods do what `app.messages.batches.BatchStore` says."""

    async def new_file(self, secret: str, file_id: str) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_files.new(secret, file_id))

    async def add_part(self, secret: str, file_id: str, part: FilePart) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_files.add_part(secret, file_id, part))

    async def finish_file(
        self, secret: str, file_id: str, sealed: bytes, seconds: int | None, purpose: UploadPurpose = "batch"
    ) -> StoredFile | Refusal:
        """purpose: an older version's ingress does not say it."""
        return await self._answer(lambda: self._accounts.stored_files.finish(secret, file_id, sealed, seconds, purpose))

    async def files(
        self, secret: str, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredFile] | Refusal:
        files = self._accounts.stored_files
        return await self._answer(lambda: files.listed(secret, purpose, after, limit, newest_first=newest_first))

    async def file(self, secret: str, file_id: str) -> StoredFile | Refusal:
        return await self._answer(lambda: self._accounts.stored_files.get(secret, file_id))

    async def parts(self, secret: str, file_id: str, after: int) -> Sequence[FilePart] | Refusal:
        return await self._answer(lambda: self._accounts.stored_files.parts(secret, file_id, after))

    async def delete_file(self, secret: str, file_id: str) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_files.delete(secret, file_id))

    async def new_batch(self, secret: str, batch: NewBatch) -> StoredBatch | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.new(secret, batch))

    async def batches(self, secret: str, after: str | None, limit: int) -> Sequence[StoredBatch] | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.listed(secret, after, limit))

    async def batch(self, secret: str, batch_id: str) -> StoredBatch | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.get(secret, batch_id))

    async def cancel_batch(self, secret: str, batch_id: str) -> StoredBatch | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.cancel(secret, batch_id))

    async def claim_batches(self, most: int) -> Sequence[ClaimedBatch] | Refusal:
        """Waits while there is no batch that could run, so that idle ingresses ask seldom."""
        batches, give_up_s = self._accounts.stored_batches, time.monotonic() + _POLL_S
        while not batches.secrets.users():
            try:
                await asyncio.wait_for(self._news.wait(), give_up_s - time.monotonic())
            except TimeoutError:
                return []
        return await self._answer(lambda: batches.claim(most), undo=batches.give_back)

    async def keep_batch(self, secret: str, batch_id: str, claim: int) -> StoredBatch | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.keep(secret, batch_id, claim))

    async def leave_batch(self, secret: str, batch_id: str, claim: int) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_batches.leave(secret, batch_id, claim))

    async def start_batch(
        self, secret: str, batch_id: str, claim: int, total: int, sealed: bytes
    ) -> StoredBatch | Refusal:
        batches = self._accounts.stored_batches
        return await self._answer(lambda: batches.start(secret, batch_id, claim, total, sealed))

    async def done_lines(self, secret: str, batch_id: str, after: int) -> Sequence[int] | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.done_lines(secret, batch_id, after))

    async def add_results(
        self, secret: str, batch_id: str, claim: int, results: Sequence[LineResult]
    ) -> StoredBatch | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.add_results(secret, batch_id, claim, results))

    async def finalize_batch(self, secret: str, batch_id: str, claim: int) -> StoredBatch | Refusal:
        return await self._answer(lambda: self._accounts.stored_batches.finalize(secret, batch_id, claim))

    async def end_batch(
        self, secret: str, batch_id: str, claim: int, state: BatchState, sealed: bytes, names: tuple[bytes, bytes]
    ) -> StoredBatch | Refusal:
        batches = self._accounts.stored_batches
        return await self._answer(lambda: batches.end(secret, batch_id, claim, state, sealed, names))
