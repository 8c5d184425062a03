"""Reads the documents of collections in the background: file, text, passages, vectors.

A document whose ingress has died is read again by the next one that is asked about it. Knows no HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from app.documents.document import BusyError, DocumentError
from app.documents.reader import DocumentReader
from app.interface.encode.encoders import Encoders
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.users.checks import caller_as
from app.interface.users.gate import AccountsGate, Meter
from app.interface.users.knowledge.sealed import CollectedDocument, Collection, Collections, ReadDocument
from app.knowledge.passages import Passage, Vectors, cut
from app.messages.accounts import AccountsError
from app.messages.failures import EngineError
from app.messages.knowledge import READ_LEASE_S
from app.messages.requests import Priority

_AT_ONCE: Final = 2
"""Documents that an ingress reads at the same time."""
_EMBEDDED_AT_ONCE: Final = 256
_BUSY_S: Final = 1.0
_NO_TEXT: Final = "No text was found in it."

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

    async def begin(
        self, caller: Caller, collections: Collections, collection: Collection, file_id: str, about: dict[str, Any]
    ) -> CollectedDocument:
        """Adds a document, and reads it in the background. Raises AccountsError."""
        held = await collections.add(collection, file_id, about)
        self._gate.in_background(self._read(caller, held))
        return held.document

    async def go_on(
        self, caller: Caller, collections: Collections, collection: Collection, document: CollectedDocument
    ) -> CollectedDocument:
        """Begins again with a document that no ingress reads any more; returns it as it is now."""
        if not document.stored.is_abandoned or not collection.stored.is_mine:
            return document
        try:
            return await self.begin(caller, collections, collection, document.stored.file_id, dict(document.about))
        except AccountsError as error:
            if error.refusal.code != "conflict":  # another ingress was faster
                raise
            return document

    async def _read(self, caller: Caller, held: ReadDocument) -> None:
        keeping = asyncio.create_task(_kept(held))
        try:
            async with self._turns, self._metered(caller) as metered:
                about = await self._passages(metered, held)
            await held.end("completed", about)
        except AccountsError as error:
            if error.refusal.code in ("not_found", "insufficient_quota", "rate_limit_exceeded"):
                await _failed(held, error.refusal.code, error.refusal.message)
            elif error.refusal.code != "conflict":  # deleted, or another one reads it
                raise
        except ApiError as error:
            await _failed(held, error.code or "server_error", error.message)
        except DocumentError as error:
            await _failed(held, "unsupported_file", str(error))
        except EngineError as error:
            await _failed(held, "server_error", str(error))
        finally:
            keeping.cancel()

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
        file_id = held.document.stored.file_id
        while True:
            try:
                document = await self._reader.read_from(lambda: self._file(caller, file_id), in_background=True)
                break
            except BusyError:
                await asyncio.sleep(_BUSY_S)
        passages = await asyncio.to_thread(cut, document.sections)
        if not passages:
            raise DocumentError(" ".join([_NO_TEXT, *document.notes]))
        about = {"name": document.name, "pages": document.pages, "notes": list(document.notes), "encoder": None}
        if self._encoders.default is not None:
            about["encoder"] = self._encoders.model().identity
        for begin in range(0, len(passages), _EMBEDDED_AT_ONCE):
            some = passages[begin : begin + _EMBEDDED_AT_ONCE]
            await held.add(some, await vectors_of(self._encoders, caller, some))
        return about


async def vectors_of(encoders: Encoders, caller: Caller, passages: list[Passage]) -> Vectors | None:
    """Returns passages' vectors; None: no encoder is served. Raises ApiError, EngineError, AccountsError."""
    if encoders.default is None:
        return None
    texts = [passage.searched for passage in passages]
    embedded = await encoders.embed(texts, caller=caller, kind="document", priority=Priority.BATCH)
    return Vectors.of(np.asarray(embedded.vectors, np.float32))


async def _kept(held: ReadDocument) -> None:
    while True:
        await asyncio.sleep(READ_LEASE_S / 4)
        try:
            await held.keep()
        except AccountsError as error:
            if error.refusal.code != "service_unavailable":
                return  # the reading hears the same


async def _failed(held: ReadDocument, code: str, message: str) -> None:
    await held.end("failed", {"error": {"code": code, "message": message}})
