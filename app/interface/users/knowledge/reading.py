"""Reads the documents of collections in the background: file, text, passages, vectors.

A document whose ingress has died is read again by the next one that is asked about it. Knows no HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from app.documents.document import BusyError, DocumentError, clean_name
from app.documents.reader import DocumentReader
from app.interface.encode.encoders import Encoders
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.text.encoder_model import EncoderModel
from app.interface.users.checks import caller_as
from app.interface.users.gate import AccountsGate, Meter
from app.interface.users.knowledge.sealed import AT_ONCE, CollectedDocument, Collection, Collections, ReadDocument
from app.knowledge.passages import ESTIMATED, Passage, Reader, Vectors, cut
from app.messages.accounts import AccountsError
from app.messages.failures import EngineError
from app.messages.knowledge import READ_LEASE_S
from app.messages.requests import Priority

_AT_ONCE: Final = 3
_OF_ONE_USER: Final = 2
"""Documents that an ingress reads at the same time."""
_EMBEDDED_AT_ONCE: Final = 256
_BUSY_S: Final = 1.0
_NO_TEXT: Final = "No text was found in it."
_NO_QUOTA: Final = (
    "The quota of the collection's owner is used up: add it again after files or collections were deleted, or tomorrow."
)
"""Everybody with whom the collection is shared reads it: so without the owner's numbers."""

File = Callable[[Caller, str], Awaitable[tuple[str, bytes]]]
"""Returns the name and the content of a caller's file. Raises AccountsError, ApiError."""


class DocumentReading:
    """What one ingress reads."""

    def __init__(self, gate: AccountsGate, reader: DocumentReader, encoders: Encoders, file: File) -> None:
        self._gate = gate
        self._reader = reader
        self._encoders = encoders
        self._file = file
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._turns_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By users: each has so many documents in the queue of all, so that no batch is before everybody else's."""

    async def begin(
        self,
        caller: Caller,
        collections: Collections,
        collection: Collection,
        documents: Mapping[str, Mapping[str, Any]],
        *,
        batch_id: str | None = None,
    ) -> Sequence[CollectedDocument]:
        """Adds documents, and reads them in the background. Raises AccountsError: none was added then.

        documents: their file ids, each with what is known of it. batch_id: under which they are added together.
        """

        async def begun() -> Sequence[CollectedDocument]:
            held = await collections.add(collection, documents, batch_id=batch_id)
            self._gate.in_background(self._read_all(caller, collections, held))
            return [one.document for one in held]

        return await self._gate.to_the_end(begun())

    async def go_on(self, caller: Caller, collections: Collections, collection: Collection) -> None:
        """Begins again with the documents that no ingress reads any more."""
        if not collection.stored.is_mine or not collection.stored.counts.in_progress:
            return
        while some := await collections.documents(collection, None, AT_ONCE, newest_first=False, only="abandoned"):
            try:
                await self.begin(caller, collections, collection, {one.stored.file_id: one.about for one in some})
            except AccountsError as error:
                if error.refusal.code not in ("conflict", "insufficient_quota"):  # another ingress was faster; no room
                    raise
                return

    def embed(
        self, caller: Caller, collections: Collections, collection: Collection, documents: Sequence[CollectedDocument]
    ) -> None:
        """Makes vectors of read documents in the background, in place of those of another encoder.

        They are searched as before until then. What can't be embedded now stays as it is.
        """
        self._gate.in_background(self._embed_all(caller, collections, collection, documents))

    async def _embed_all(
        self, caller: Caller, collections: Collections, collection: Collection, documents: Sequence[CollectedDocument]
    ) -> None:
        assert caller.identity is not None
        turn = self._turns_of.setdefault(caller.identity.user_id, asyncio.Semaphore(_OF_ONE_USER))
        for document in documents:
            try:
                async with turn, self._turns:
                    await self._embed(caller, collections, collection, document)
            except AccountsError as error:
                if error.refusal.code not in ("not_found", "conflict"):  # it was deleted, or another ingress reads it
                    return
            except (ApiError, EngineError):
                return

    async def _embed(
        self, caller: Caller, collections: Collections, collection: Collection, document: CollectedDocument
    ) -> None:
        """Raises AccountsError, ApiError, EngineError: the document is as before then."""
        file_id = document.stored.file_id
        now = await collections.document(collection, file_id)
        if now.stored.number != document.stored.number:  # another ingress has embedded it, or it was added again
            return
        [held] = await collections.add(collection, {file_id: now.about})
        unread = {held.document.stored.number}
        keeping = asyncio.create_task(_kept(collections, collection, unread))
        encoder = self._encoders.identity
        try:
            async with self._metered(caller) as metered:
                async for passages, _ in collections.passages(collection, document):
                    await self._add(metered, held, passages)
            if encoder is None or self._encoders.identity != encoder:  # another one is served since
                await held.leave()
                return
            await held.complete({"encoder": encoder})
        except (AccountsError, ApiError, EngineError):
            with suppress(AccountsError):
                await held.leave()
            raise
        finally:
            unread.clear()
            keeping.cancel()

    async def _read_all(self, caller: Caller, collections: Collections, held: Sequence[ReadDocument]) -> None:
        """Reads documents of a collection, each in its turn; all leases are kept until then."""
        assert caller.identity is not None
        turn = self._turns_of.setdefault(caller.identity.user_id, asyncio.Semaphore(_OF_ONE_USER))
        unread = {one.document.stored.number for one in held}
        keeping = asyncio.create_task(_kept(collections, held[0].collection, unread))
        try:
            reading = (self._read(caller, one, unread, turn) for one in held)
            ended = await asyncio.gather(*reading, return_exceptions=True)
        finally:
            keeping.cancel()
        for failure in ended:
            if failure is not None:
                raise failure

    async def _read(self, caller: Caller, held: ReadDocument, unread: set[int], turn: asyncio.Semaphore) -> None:
        """Reads a document, unless it is not `unread` any more when its turn comes. turn: of its user."""
        number = held.document.stored.number
        try:
            async with turn, self._turns:
                if number not in unread:
                    return
                async with self._metered(caller) as metered:
                    about = await self._passages(metered, held)
                await held.complete(about)
        except AccountsError as error:
            code = error.refusal.code
            if code in ("not_found", "insufficient_quota", "rate_limit_exceeded"):
                await held.fail(code, _NO_QUOTA if code == "insufficient_quota" else error.refusal.message)
            elif code != "conflict":  # deleted or cancelled, or another one reads it
                raise
        except ApiError as error:
            await held.fail(error.code or "server_error", error.message)
        except DocumentError as error:
            await held.fail("unsupported_file", str(error))
        except EngineError as error:
            await held.fail("server_error", str(error))
        finally:
            unread.discard(number)

    @asynccontextmanager
    async def _metered(self, caller: Caller) -> AsyncIterator[Caller]:
        """Admits the work as a batch's: it counts against the user's tokens, and nobody waits for it."""
        assert caller.identity is not None
        meter = Meter(caller.identity, caller.secret, in_batch=True)
        self._gate.register(meter)
        try:
            admission = await self._gate.admit(meter)
            if admission.refusal is not None:
                raise AccountsError.of(admission.refusal)
            yield replace(caller_as(caller.identity, caller.secret), meter=meter, priority=Priority.BATCH)
        finally:
            self._gate.unregister(meter, admitted=meter.has_begun)

    async def _passages(self, caller: Caller, held: ReadDocument) -> dict[str, Any]:
        """Stores a document's passages, and returns what is known of it."""

        async def load() -> tuple[str, bytes]:
            name, data = await self._file(caller, held.document.stored.file_id)
            held.known["name"] = clean_name(name)
            return name, data

        while True:
            try:
                document = await self._reader.read(load, in_background=True)
                break
            except BusyError:
                await asyncio.sleep(_BUSY_S)
        place = replace(held.document, about={**held.document.about, **held.known}).place
        reader = ESTIMATED if self._encoders.default is None else reader_of(self._encoders.model())
        passages = await asyncio.to_thread(cut, document.sections, kind=document.kind, place=place, reader=reader)
        if not passages:
            raise DocumentError(" ".join([_NO_TEXT, *document.notes]))
        encoder = self._encoders.identity
        await self._add(caller, held, passages)
        return {
            "pages": document.pages,
            "notes": list(document.notes),
            "passages": len(passages),
            "encoder": encoder if self._encoders.identity == encoder else None,  # vectors of two: they are made anew
        }

    async def _add(self, caller: Caller, held: ReadDocument, passages: Sequence[Passage]) -> None:
        """Embeds passages if an encoder is served, and stores them. Raises ApiError, EngineError, AccountsError."""
        for begin in range(0, len(passages), _EMBEDDED_AT_ONCE):
            some, vectors = passages[begin : begin + _EMBEDDED_AT_ONCE], None
            if self._encoders.default is not None:
                texts = [passage.searched() for passage in some]
                made = await self._encoders.embed(texts, caller=caller, kind="document", priority=Priority.BATCH)
                vectors = Vectors.of(np.asarray(made.vectors, np.float32))
            await held.add(some, vectors)


def reader_of(encoder: EncoderModel) -> Reader:
    """Returns how much of a passage an encoder reads."""
    [prompt] = encoder.count([encoder.prompt("document")])
    return Reader(encoder.count, encoder.max_tokens - encoder.special_tokens - prompt)


async def _kept(collections: Collections, collection: Collection, unread: set[int]) -> None:
    """Keeps the leases of documents, and takes out of `unread` those that are not to be read any more."""
    while unread:
        await asyncio.sleep(READ_LEASE_S / 4)
        try:
            unread &= {*await collections.keep(collection, sorted(unread))}
        except AccountsError as error:
            if error.refusal.code != "service_unavailable":
                return  # the reading hears the same
