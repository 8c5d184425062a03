"""Searches in collections: their passages are opened in memory, and dropped when nobody has searched for a while."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.interface.encode.encoders import Encoders
from app.interface.request.callers import Caller
from app.interface.users.knowledge.reading import DocumentReading, vectors_of
from app.interface.users.knowledge.sealed import CollectedDocument, Collection, Collections
from app.interface.wire.vector_stores import Filter, RankingOptions
from app.knowledge.index import CANDIDATES, Hit, OpenDocument, search
from app.knowledge.lexical import Lexicon
from app.knowledge.passages import Passage, Vectors
from app.messages.accounts import AccountsError

_MOST_BYTES: Final = 512 << 20
"""Of all opened collections of an ingress; the least recently searched go first."""
_IDLE_S: Final = 600.0
MOST_QUESTION_CHARACTERS: Final = 2000
"""What is searched of a question: each of its words visits every document."""


@dataclass(slots=True)
class _Opened:
    """A collection whose passages are open."""

    encoder: str | None
    changes: int = -1
    """Of the collection when all of it was opened; -1: it never was."""
    documents: dict[int, OpenDocument] = field(default_factory=dict, repr=False)
    """By their numbers."""
    size_bytes: int = 0
    closing: asyncio.TimerHandle | None = None


class KnowledgeSearch:
    """The searches of one ingress. Who may search is asked of the accounts each time."""

    def __init__(self, encoders: Encoders, reading: DocumentReading) -> None:
        self._encoders = encoders
        self._reading = reading
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._opening: dict[str, asyncio.Lock] = {}

    async def search(
        self,
        caller: Caller,
        documents: Sequence[OpenDocument],
        questions: Sequence[str],
        most: int,
        ranking: RankingOptions | None = None,
    ) -> list[Hit]:
        """Returns the best passages of `documents` for the questions, best first. Raises as they do."""
        questions = [question[:MOST_QUESTION_CHARACTERS] for question in questions]
        least_score = (ranking.score_threshold if ranking else None) or 0.0
        vectors = None
        if self._encoders.default is not None and documents:
            vectors = (await self._encoders.embed(questions, caller=caller, kind="query")).vectors
        reranker = self._encoders.reranker
        best: dict[tuple[str, int], Hit] = {}
        for at, question in enumerate(questions):
            vector = None if vectors is None else vectors[at]
            some = CANDIDATES if reranker is not None else most
            hits = await asyncio.to_thread(search, documents, question, vector, some)
            if reranker is not None and hits:
                texts = [hit.passage.searched for hit in hits]
                scored = await self._encoders.score(question, texts, caller=caller, model=reranker)
                hits = [replace(hit, score=float(score)) for hit, score in zip(hits, scored.scores, strict=True)]
            for hit in hits:
                place = hit.document.file_id, hit.index
                if place not in best or best[place].score < hit.score:
                    best[place] = hit
        ranked = sorted(best.values(), key=lambda hit: -hit.score)
        return [hit for hit in ranked if hit.score >= least_score][:most]

    async def documents(
        self, caller: Caller, collections: Collections, collection_ids: Sequence[str], filters: Filter | None
    ) -> list[OpenDocument]:
        """Returns collections' read documents, opened, each collection's oldest first.

        filters: on the documents' attributes; None: all. Raises AccountsError, ApiError, EngineError.
        """
        found = list[OpenDocument]()
        for collection_id in dict.fromkeys(collection_ids):
            found += await self._documents(caller, collections, await collections.get(collection_id))
        return [one for one in found if filters is None or filters.holds(dict(one.attributes))]

    async def _documents(self, caller: Caller, collections: Collections, collection: Collection) -> list[OpenDocument]:
        """Returns the collection's read documents, opened."""
        collection_id = collection.stored.id
        async with self._opening.setdefault(collection_id, asyncio.Lock()):
            encoder = self._encoders.model().identity if self._encoders.default is not None else None
            opened = self._opened.get(collection_id)
            if opened is None or opened.encoder != encoder:
                opened = _Opened(encoder)
            try:
                if opened.changes != collection.stored.changes:
                    await self._update(caller, collections, collection, opened)
            finally:  # what was opened for a question that was given up is there for the next one
                self._keep(collection_id, opened)
            return list(opened.documents.values())

    async def _update(self, caller: Caller, collections: Collections, collection: Collection, opened: _Opened) -> None:
        """Opens what is new in a collection, and closes what is gone."""
        await self._reading.go_on(caller, collections, collection)
        found = await _read_documents(collections, collection)
        there = opened.documents
        try:
            for each in found:
                number = each.stored.number
                document = there.get(number) or await self._open(caller, collections, collection, each, opened.encoder)
                if document is not None:
                    there[number] = replace(document, attributes=each.about.get("attributes") or {})
            numbers = [each.stored.number for each in found if each.stored.number in there]
            opened.documents, opened.changes = {number: there[number] for number in numbers}, collection.stored.changes
        finally:
            opened.size_bytes = sum(document.size_bytes for document in opened.documents.values())

    async def _open(
        self,
        caller: Caller,
        collections: Collections,
        collection: Collection,
        document: CollectedDocument,
        encoder: str | None,
    ) -> OpenDocument | None:
        """Returns a document, opened; None: it was taken out meanwhile."""
        passages, vectors = list[Passage](), list[Vectors]()
        try:
            async for some, codes in collections.passages(collection, document):
                passages += some
                if document.about.get("encoder") != encoder:  # another one is served by now
                    codes = await vectors_of(self._encoders, caller, some)
                if codes is not None:
                    vectors.append(codes)
        except AccountsError as error:
            await _check_collection(error, collections, collection)
            return None
        lexicon = await asyncio.to_thread(Lexicon, [passage.searched for passage in passages])
        return OpenDocument(
            document.stored.file_id,
            document.name,
            passages,
            lexicon,
            Vectors.joined(vectors) if vectors else None,
        )

    def _keep(self, collection_id: str, opened: _Opened) -> None:
        """Keeps an opened collection for a while, and drops others if all take too much."""
        former = self._opened.pop(collection_id, None)
        for each in (former, opened):
            if each is not None and each.closing is not None:
                each.closing.cancel()
        opened.closing = asyncio.get_running_loop().call_later(_IDLE_S, self._drop, collection_id)
        self._opened[collection_id] = opened
        while len(self._opened) > 1 and sum(each.size_bytes for each in self._opened.values()) > _MOST_BYTES:
            self._drop(next(iter(self._opened)))

    def _drop(self, collection_id: str) -> None:
        opened = self._opened.pop(collection_id, None)
        if opened is not None and opened.closing is not None:
            opened.closing.cancel()
        lock = self._opening.get(collection_id)
        if lock is not None and not lock.locked():
            del self._opening[collection_id]


async def _read_documents(collections: Collections, collection: Collection) -> list[CollectedDocument]:
    try:
        return [each async for each in collections.read_documents(collection)]
    except AccountsError as error:  # the last document of a part may be taken out before the next part is asked for
        await _check_collection(error, collections, collection)
        return [each async for each in collections.read_documents(collection)]


async def _check_collection(error: AccountsError, collections: Collections, collection: Collection) -> None:
    """Raises AccountsError unless the error is that a document was taken out, and its collection is still there."""
    if error.refusal.code != "not_found":
        raise error
    await collections.get(collection.stored.id)
