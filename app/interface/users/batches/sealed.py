"""A user's files and batches in plain text: sealed here before they go to the accounts, opened here.

Each part is sealed with its user's id, its file's and its number, so that none opens in place of another. An upload's
parts are sealed under a key of its own, which is sealed beside its name: deleting the file destroys that key at once,
while its parts are deleted in steps. Results of a batch, which several ingresses may write, are sealed under the
user's key. Knows neither HTTP nor what a line asks for.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from app.interface.request import errors
from app.interface.users.texts import damaged
from app.messages.accounts import Identity
from app.messages.batches import (
    DOCUMENT_PURPOSES,
    PART_BYTES,
    BatchState,
    BatchStore,
    ClaimedBatch,
    FilePart,
    LineResult,
    NewBatch,
    StoredBatch,
    StoredFile,
    UploadPurpose,
)
from app.sealing.records import SEALING_BYTES, SealError, seal, unseal

_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class UserFile:
    """A complete file without its content."""

    stored: StoredFile
    name: str = field(repr=False)
    key: bytes = field(repr=False)
    """Under which its parts are sealed."""

    @property
    def size_bytes(self) -> int:
        return self.stored.sealed_bytes - self.stored.parts * SEALING_BYTES


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with what was asked for."""

    stored: StoredBatch
    asked: Mapping[str, Any] = field(repr=False)
    """`endpoint`, `metadata`; `model` once its lines are right; `errors` if they are not."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a file's content."""

    last: int
    """The number of its last part."""
    content: bytes = field(repr=False)


class Upload:
    """A file that is being written; for one task."""

    def __init__(self, files: "BatchTexts") -> None:
        self.file_id = f"file-{uuid.uuid4().hex}"
        self._files = files
        self._key = os.urandom(_KEY_BYTES)
        self._rest = bytearray()
        self._parts = 0
        self.size_bytes = 0

    async def write(self, content: bytes) -> None:
        """Adds content. Raises AccountsError."""
        self._rest += content
        self.size_bytes += len(content)
        while len(self._rest) >= PART_BYTES:
            await self._store(bytes(self._rest[:PART_BYTES]))
            del self._rest[:PART_BYTES]

    async def finish(self, name: str, seconds: int | None, purpose: UploadPurpose) -> UserFile:
        """Completes the file. seconds: how long it is kept. Raises AccountsError."""
        if self._rest:
            await self._store(bytes(self._rest))
        return await self._files.finish_file(self.file_id, self._key, name, seconds, purpose)

    async def _store(self, content: bytes) -> None:
        await self._files.add_part(self.file_id, self._key, self._parts, content)
        self._parts += 1


class BatchTexts:
    """The files and batches of a credential's user. Methods raise AccountsError, and ApiError (500) if damaged."""

    def __init__(self, store: BatchStore, identity: Identity, secret: str) -> None:
        self._store = store
        self._secret = secret
        self._key = identity.texts_key
        self._user_id = identity.user_id

    # --- files

    async def upload(self) -> Upload:
        """Begins a file."""
        upload = Upload(self)
        await self._store.new_file(self._secret, upload.file_id)
        return upload

    async def add_part(self, file_id: str, key: bytes, seq: int, content: bytes) -> None:
        part = FilePart(seq, self._seal(content, _part_of(file_id, seq), key))
        await self._store.add_part(self._secret, file_id, part)

    async def finish_file(
        self, file_id: str, key: bytes, name: str, seconds: int | None, purpose: UploadPurpose
    ) -> UserFile:
        sealed = self._seal(key + name.encode(), _key_and_name_of(file_id))
        return self._file(await self._store.finish_file(self._secret, file_id, sealed, seconds, purpose))

    async def files(
        self, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[UserFile]:
        found = await self._store.files(
            self._secret, purpose=purpose, after=after, limit=limit, newest_first=newest_first
        )
        return [self._file(one) for one in found]

    async def file(self, file_id: str) -> UserFile:
        return self._file(await self._store.file(self._secret, file_id))

    async def content(self, file: UserFile) -> AsyncGenerator[bytes, None]:
        """Yields the content piece by piece."""
        after = -1
        while (piece := await self.piece(file, after)) is not None:
            yield piece.content
            after = piece.last

    async def piece(self, file: UserFile, after: int) -> Piece | None:
        """Returns the content of some parts after number `after` (-1: from the first); None: there is no more."""
        file_id = file.stored.id
        parts = await self._store.parts(self._secret, file_id, after)
        if not parts:
            return None
        content = b"".join(self._open(part.sealed, _part_of(file_id, part.seq), file.key) for part in parts)
        return Piece(parts[-1].seq, content)

    async def document(self, file_id: str, most_bytes: int) -> tuple[str, bytes]:
        """Returns the name and content of a file that messages may refer to. Raises ApiError (400, 413)."""
        file = await self.file(file_id)
        if file.stored.purpose not in DOCUMENT_PURPOSES:
            raise errors.invalid(f"The file {file_id} is for batches: upload it with purpose user_data.", "file_id")
        if file.size_bytes > most_bytes:
            raise errors.file_too_large(most_bytes)
        return file.name, b"".join([piece async for piece in self.content(file)])

    async def delete_file(self, file_id: str) -> None:
        await self._store.delete_file(self._secret, file_id)

    # --- batches

    async def new(self, input_id: str, asked: Mapping[str, Any], output_seconds: int | None) -> Batch:
        """Begins a batch. output_seconds: how long its files of results are kept."""
        batch_id = f"batch_{uuid.uuid4().hex}"
        output_id, error_id = (f"file-{uuid.uuid4().hex}" for _ in range(2))
        batch = NewBatch(batch_id, input_id, output_id, error_id, self.sealed_asked(batch_id, asked), output_seconds)
        return self.opened(await self._store.new_batch(self._secret, batch))

    async def newest(self, after: str | None, limit: int) -> Sequence[Batch]:
        return [self.opened(one) for one in await self._store.batches(self._secret, after=after, limit=limit)]

    async def get(self, batch_id: str) -> Batch:
        return self.opened(await self._store.batch(self._secret, batch_id))

    async def cancel(self, batch_id: str) -> Batch:
        return self.opened(await self._store.cancel_batch(self._secret, batch_id))

    def claimed(self, claim: ClaimedBatch) -> "HeldBatch":
        """Opens a batch that this ingress has."""
        return HeldBatch(self, self._store, self._secret, self.opened(claim.batch), claim.claim)

    # --- for a held batch

    def opened(self, stored: StoredBatch) -> Batch:
        return Batch(stored, orjson.loads(self._open(stored.sealed, _batch_of(stored.id))))

    def sealed_asked(self, batch_id: str, asked: Mapping[str, Any]) -> bytes:
        return self._seal(orjson.dumps(asked), _batch_of(batch_id))

    def sealed_part(self, file_id: str, seq: int, content: bytes) -> bytes:
        return self._seal(content, _part_of(file_id, seq))

    def sealed_names(self, stored: StoredBatch) -> tuple[bytes, bytes]:
        """Seals the names of output and errors."""
        return (
            self._sealed_name(stored.output_id, f"{stored.id}_output.jsonl"),
            self._sealed_name(stored.error_id, f"{stored.id}_error.jsonl"),
        )

    # --- internals

    def _file(self, stored: StoredFile) -> UserFile:
        try:
            opened = unseal(self._key, stored.sealed, f"{self._user_id} {_key_and_name_of(stored.id)}")
        except SealError:  # a batch's results, or what was uploaded before there were keys of files
            return UserFile(stored, self._open(stored.sealed, _name_of(stored.id)).decode(), self._key)
        return UserFile(stored, opened[_KEY_BYTES:].decode(), opened[:_KEY_BYTES])

    def _sealed_name(self, file_id: str, name: str) -> bytes:
        return self._seal(name.encode(), _name_of(file_id))

    def _seal(self, value: bytes, what: str, key: bytes | None = None) -> bytes:
        """key: None: the user's."""
        return seal(self._key if key is None else key, value, f"{self._user_id} {what}")

    def _open(self, sealed: bytes, what: str, key: bytes | None = None) -> bytes:
        try:
            return unseal(self._key if key is None else key, sealed, f"{self._user_id} {what}")
        except SealError:
            raise damaged(what) from None


class HeldBatch:
    """A batch that this ingress has claimed. Methods raise AccountsError: `conflict` if another one has it by now."""

    def __init__(self, texts: BatchTexts, store: BatchStore, secret: str, batch: Batch, claim: int) -> None:
        self.batch = batch
        """As it was at the last call."""
        self._texts = texts
        self._store = store
        self._secret = secret
        self._claim = claim
        self._calling = asyncio.Lock()  # answers come in the order of calls, so the last one is the newest
        self._input: UserFile | None = None

    @property
    def id(self) -> str:
        return self.batch.stored.id

    async def input_after(self, after: int) -> Piece | None:
        """Returns a piece of the input: see `BatchTexts.piece`."""
        if self._input is None:
            self._input = await self._texts.file(self.batch.stored.input_id)
        return await self._texts.piece(self._input, after)

    async def keep(self) -> None:
        """Prolongs the lease."""
        await self._call(lambda: self._store.keep_batch(self._secret, self.id, self._claim))

    async def leave(self) -> None:
        """Ends the lease."""
        await self._store.leave_batch(self._secret, self.id, self._claim)

    async def start(self, total: int, model: str | None) -> None:
        """Its lines are right."""
        sealed = self._texts.sealed_asked(self.id, {**self.batch.asked, "model": model})
        await self._call(lambda: self._store.start_batch(self._secret, self.id, self._claim, total, sealed))

    async def done_lines(self) -> set[int]:
        """Returns the numbers of lines that have a result."""
        done, after = set[int](), 0
        while some := await self._store.done_lines(self._secret, self.id, after):
            done.update(some)
            after = some[-1]
        return done

    def result(self, seq: int, content: bytes, *, is_error: bool) -> LineResult:
        """Seals a line's result."""
        stored = self.batch.stored
        file_id = stored.error_id if is_error else stored.output_id
        return LineResult(seq, is_error, self._texts.sealed_part(file_id, seq, content))

    async def add(self, results: Sequence[LineResult]) -> None:
        """Stores results, and prolongs the lease."""
        await self._call(lambda: self._store.add_results(self._secret, self.id, self._claim, results))

    async def finalize(self) -> None:
        """No more lines run."""
        await self._call(lambda: self._store.finalize_batch(self._secret, self.id, self._claim))

    async def end(self, state: BatchState, faults: Sequence[Mapping[str, Any]] = ()) -> None:
        """Ends the batch. faults: why it has failed."""
        asked = {**self.batch.asked, **({"errors": list(faults)} if faults else {})}
        sealed, names = self._texts.sealed_asked(self.id, asked), self._texts.sealed_names(self.batch.stored)
        await self._call(lambda: self._store.end_batch(self._secret, self.id, self._claim, state, sealed, names))

    async def _call(self, call: Callable[[], Awaitable[StoredBatch]]) -> None:
        async with self._calling:
            self.batch = self._texts.opened(await call())


def _name_of(file_id: str) -> str:
    return f"file {file_id}"


def _key_and_name_of(file_id: str) -> str:
    return f"key and name of file {file_id}"


def _part_of(file_id: str, seq: int) -> str:
    return f"part {file_id} {seq}"


def _batch_of(batch_id: str) -> str:
    return f"batch {batch_id}"
