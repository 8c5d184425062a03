"""Searches in collections: their passages are opened in memory, and dropped when nobody has searched for a while."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from app.interface.encode.encoders import Encoders
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.users.knowledge.reading import DocumentReading
from app.interface.users.knowledge.sealed import CollectedDocument, Collection, Collections
from app.interface.wire.vector_stores import Filter, RankingOptions
from app.knowledge.index import CANDIDATES, AddedDocument, Hit, Index, OpenDocument, OpenDocuments, search
from app.knowledge.passages import Passage, Vectors
from app.messages.accounts import AccountsError
from app.messages.failures import EngineError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_MOST_BYTES: Final = 512 << 20
"""Of all opened collections of an ingress; the least recently searched go first."""
_MOST_SEARCHED_BYTES: Final = 384 << 20
"""Of the collections of one question: more than 100,000 passages."""
_IDLE_S: Final = 600.0
_VECTOR_S: Final = 10.0
_SCORES_S: Final = 30.0
"""How long a question waits for its vector, and for its passages' scores; words alone find something, too."""
_UNUSED_WORDS: Final = 100_000
"""Of documents that are gone; with more, and as many as those in use, a collection is opened anew."""
MOST_QUESTION_CHARACTERS: Final = 2000
"""What is searched of a question."""


@dataclass(slots=True)
class _Opened:
    """A collection whose passages are open."""

    encoder: str | None
    index: Index = field(default_factory=Index, repr=False)
    added: dict[int, AddedDocument] = field(default_factory=dict, repr=False)
    """By their numbers: those that were opened, and are not in the index yet."""
    added_bytes: int = 0
    documents: Sequence[OpenDocument] = field(default=(), repr=False)
    """Those of the index, oldest first."""
    changes: int = -1
    """Of the collection when all of it was opened; -1: it never was."""
    is_too_large: bool = False
    """Whether it was when it had these changes; nothing of it is open then."""
    unread: int = 0
    others: Sequence[CollectedDocument] = field(default=(), repr=False)
    """Those without vectors of the present encoder, until these are being made."""
    is_embedded: bool = False
    """Whether they are, or have been: what failed is not tried again while the collection is open."""
    closing: asyncio.TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return self.index.size_bytes + self.added_bytes

    @property
    def has_unused_words(self) -> bool:
        """Whether most of its words are of documents that are gone."""
        used = len(self.index.lexicon.words)
        return not self.added and len(self.index.vocabulary) > 2 * used + _UNUSED_WORDS


class Found(list[Hit]):
    """Passages that were found, best first."""

    def __init__(self, hits: Iterable[Hit], *, words_only: bool) -> None:
        super().__init__(hits)
        self.words_only: Final = words_only
        """Whether meanings were not compared: no encoder is served, or none answers, or the passages have no vectors
        of it yet."""


class KnowledgeSearch:
    """The searches of one ingress. Who may search is asked of the accounts each time."""

    def __init__(self, encoders: Encoders, reading: DocumentReading) -> None:
        self._encoders = encoders
        self._reading = reading
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._opening = WeakValueDictionary[str, asyncio.Lock]()

    async def search(
        self,
        caller: Caller,
        documents: OpenDocuments,
        questions: Sequence[str],
        most: int,
        ranking: RankingOptions | None = None,
    ) -> Found:
        """Returns the best passages of `documents` for the questions, best first, and of the same text one.

        An encoder or reranker that does not answer is done without. Raises AccountsError, ApiError.
        """
        questions = [question[:MOST_QUESTION_CHARACTERS] for question in questions]
        least_score = (ranking.score_threshold if ranking else None) or 0.0
        vectors = await self._vectors(caller, documents, questions)
        reranker = None if ranking is not None and ranking.ranker == "none" else self._encoders.reranker
        found = list[list[Hit]]()
        for at, question in enumerate(questions):
            vector = None if vectors is None else vectors[at]
            some = most if reranker is None else CANDIDATES
            found.append(await asyncio.to_thread(search, documents, question, vector, some))
        if reranker is not None:
            found = await self._reranked(caller, reranker, questions, found) or found
        best: dict[tuple[str, str], Hit] = {}
        for hit in (hit for hits in found for hit in hits):
            passage = hit.document.passages[hit.index]
            text = passage.lead, passage.text.strip()
            if text not in best or best[text].order < hit.order:
                best[text] = hit
        ranked = sorted(best.values(), key=lambda hit: -hit.order)
        return Found([hit for hit in ranked if hit.score >= least_score][:most], words_only=vectors is None)

    async def _vectors(
        self, caller: Caller, documents: OpenDocuments, questions: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Returns the questions' vectors [questions, dimensions]; None: words alone are searched."""
        if self._encoders.default is None or not documents.have_vectors:
            return None
        made = await _unless_down(self._encoders.embed(questions, caller=caller, kind="query"), _VECTOR_S)
        return None if made is None else made.vectors

    async def _reranked(
        self, caller: Caller, reranker: str, questions: Sequence[str], found: Sequence[Sequence[Hit]]
    ) -> list[list[Hit]] | None:
        """Returns the hits of each question with the reranker's scores; None: it does not answer."""
        scored = list[list[Hit]]()
        for question, hits in zip(questions, found, strict=True):
            if not hits:
                scored.append([])
                continue
            texts = [hit.document.passages[hit.index].searched(hit.document.place) for hit in hits]
            scoring = self._encoders.score(question, texts, caller=caller, model=reranker)
            if (made := await _unless_down(scoring, _SCORES_S)) is None:
                return None
            scores = made.scores.tolist()
            scored.append([replace(hit, score=one, order=one) for hit, one in zip(hits, scores, strict=True)])
        return scored

    async def documents(
        self, caller: Caller, collections: Collections, collection_ids: Sequence[str], filters: Filter | None
    ) -> OpenDocuments:
        """Returns collections' read documents, opened, each collection's oldest first.

        filters: on the documents' attributes; None: all. Raises AccountsError, ApiError: also 400 if they are too
        large together, and 503 while too much is open.
        """
        found, indexes, unread = list[OpenDocument](), list[Index](), 0
        for collection_id in dict.fromkeys(collection_ids):
            opened = await self._open(caller, collections, await collections.get(collection_id))
            found += opened.documents
            indexes.append(opened.index)
            unread += opened.unread
            if sum(index.size_bytes for index in indexes) > _MOST_SEARCHED_BYTES:
                raise _too_large()
        chosen = [one for one in found if filters is None or filters.holds(dict(one.attributes))]
        return OpenDocuments(chosen, indexes, unread)

    async def _open(self, caller: Caller, collections: Collections, collection: Collection) -> _Opened:
        """Returns a collection with its read documents, opened."""
        collection_id = collection.stored.id
        async with self._opening.setdefault(collection_id, asyncio.Lock()):
            encoder = self._encoders.identity
            opened = self._opened.get(collection_id)
            if opened is None or opened.encoder != encoder or opened.has_unused_words:
                opened = _Opened(encoder)
            try:
                self._keep(collection_id, opened)
                if opened.changes < collection.stored.changes:
                    await self._update(caller, collections, collection, opened)
            finally:  # what was opened for a question that was given up is there for the next one
                self._keep(collection_id, opened)
            if opened.is_too_large:
                raise _too_large()
            if opened.others and collection.stored.is_mine:
                self._reading.embed(caller, collections, collection, opened.others)
                opened.others, opened.is_embedded = (), True
            return opened

    async def _update(self, caller: Caller, collections: Collections, collection: Collection, opened: _Opened) -> None:
        """Opens what is new in a collection, and closes what is gone."""
        await self._reading.go_on(caller, collections, collection)
        found = await _read_documents(collections, collection)
        numbers = {each.stored.number for each in found}
        there = {each.number for each in opened.index.documents}
        if numbers - there - opened.added.keys():
            await _drop_gone(opened, numbers)
        for each in found:
            number = each.stored.number
            if number in there or number in opened.added:
                continue
            if (document := await self._added(collections, collection, each, opened)) is not None:
                opened.added[number] = document
                opened.added_bytes += document.size_bytes
            if self._is_too_large(collection.stored.id, opened):
                opened.index, opened.documents, opened.is_too_large = Index(), (), True
                opened.added, opened.added_bytes = {}, 0
                opened.changes = collection.stored.changes
                return
        known = {each.number: each for each in opened.index.documents}
        known.update({number: each.document for number, each in opened.added.items()})
        documents = [
            replace(known[each.stored.number], attributes=each.about.get("attributes") or {})
            for each in found
            if each.stored.number in known
        ]
        opened.index = await asyncio.to_thread(opened.index.changed, documents, opened.added)
        opened.added, opened.added_bytes = {}, 0
        opened.documents, opened.is_too_large = documents, False
        counts = collection.stored.counts
        opened.unread = max(0, counts.in_progress - max(0, len(found) - counts.completed))
        opened.changes = collection.stored.changes
        if opened.encoder is not None and not opened.is_embedded:
            opened.others = [each for each in found if each.about.get("encoder") != opened.encoder]

    async def _added(
        self, collections: Collections, collection: Collection, document: CollectedDocument, opened: _Opened
    ) -> AddedDocument | None:
        """Returns a document, opened; None: it was taken out meanwhile."""
        passages, vectors = list[Passage](), list[Vectors]()
        try:
            async for some, codes in collections.passages(collection, document):
                passages += some
                if codes is not None and document.about.get("encoder") == opened.encoder:
                    vectors.append(codes)
        except AccountsError as error:
            await _check_collection(error, collections, collection)
            return None
        stored = document.stored
        attributes = document.about.get("attributes") or {}
        opened_document = OpenDocument(
            stored.file_id, document.name, passages, attributes, stored.number, collection.stored.id
        )
        # Those that were written while the encoder changed are of two, or not of all passages: words find them.
        is_whole = sum(len(each.codes) for each in vectors) == len(passages)
        is_of_one = len({each.codes.shape[1] for each in vectors}) == 1
        joined = Vectors.joined(vectors) if is_whole and is_of_one else None
        return await asyncio.to_thread(AddedDocument.of, opened_document, joined, opened.index.vocabulary)

    def _is_too_large(self, collection_id: str, opened: _Opened) -> bool:
        """Returns whether a collection that is being opened is. Raises ApiError (503) if too much else is open."""
        if opened.size_bytes > _MOST_SEARCHED_BYTES:
            return True
        for other in [*self._opened]:
            if self._size_bytes <= _MOST_BYTES:
                break
            lock = self._opening.get(other)
            if other != collection_id and (lock is None or not lock.locked()):
                self._drop(other)
        if self._size_bytes > _MOST_BYTES:
            raise errors.unavailable(5, "Too many collections are searched at once. Try again in a moment.")
        return False

    @property
    def _size_bytes(self) -> int:
        return sum(each.size_bytes for each in self._opened.values())

    def _keep(self, collection_id: str, opened: _Opened) -> None:
        """Keeps an opened collection for a while."""
        former = self._opened.pop(collection_id, None)
        for each in (former, opened):
            if each is not None and each.closing is not None:
                each.closing.cancel()
        opened.closing = asyncio.get_running_loop().call_later(_IDLE_S, self._drop, collection_id)
        self._opened[collection_id] = opened

    def _drop(self, collection_id: str) -> None:
        opened = self._opened.pop(collection_id, None)
        if opened is not None and opened.closing is not None:
            opened.closing.cancel()


async def _drop_gone(opened: _Opened, numbers: Set[int]) -> None:
    """Drops documents that are gone, so that those that replace them have room. numbers: of what is there."""
    for number in opened.added.keys() - numbers:
        opened.added_bytes -= opened.added.pop(number).size_bytes
    left = [each for each in opened.index.documents if each.number in numbers]
    if len(left) < len(opened.index.documents):
        opened.index = await asyncio.to_thread(opened.index.changed, left, {})


def _too_large() -> ApiError:
    message = "The collections hold more text than can be searched at once. Divide the documents among several."
    return errors.invalid(message, code="collection_too_large")


async def _unless_down(asked: Awaitable[Result], most_s: float) -> Result | None:
    """Returns what an encoder makes; None: it does not answer."""
    try:
        async with asyncio.timeout(most_s):
            return await asked
    except (EngineError, TimeoutError) as error:
        logger.warning("A question is answered without an encoder: %s", type(error).__qualname__)
        return None


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
