"""The open passages of collections, in memory, and the search in them.

Exact: a product with all vectors, and BM25 over all passages, joined by reciprocal ranks (Cormack, Clarke and Büttcher,
2009). So there is no structure to store or to leak.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from app.knowledge.lexical import Lexicon, Vocabulary, scores
from app.knowledge.passages import Passage, Vectors

_RANK_OFFSET: Final = 60
"""Of reciprocal ranks, as in the paper."""
CANDIDATES: Final = 50
"""How many of each ranking are joined."""
_PASSAGE_BYTES: Final = 250
"""About what the object of a passage takes, its numbers, and its place in an index."""


@dataclass(frozen=True, slots=True)
class OpenDocument:
    """A document whose passages were opened."""

    file_id: str
    name: str = field(repr=False)
    passages: Sequence[Passage] = field(repr=False)
    attributes: Mapping[str, object] = field(default_factory=dict, repr=False)
    number: int = 0
    """In its collection."""
    collection_id: str = ""

    @property
    def place(self) -> str:
        """What tells it from others: its path if its attributes have one, otherwise its name."""
        return str(self.attributes.get("path") or self.name)


@dataclass(frozen=True, slots=True, eq=False)
class AddedDocument:
    """An open document that is not in an index yet."""

    document: OpenDocument
    lexicon: Lexicon = field(repr=False)
    vectors: Vectors | None = field(default=None, repr=False)
    """None: there are none of the encoder that is served now."""

    @classmethod
    def of(cls, document: OpenDocument, vectors: Vectors | None, vocabulary: Vocabulary) -> Self:
        """Counts a document's words."""
        texts = [passage.searched(document.place) for passage in document.passages]
        return cls(document, Lexicon.of(texts, vocabulary), vectors)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        numbers = 0 if self.vectors is None else self.vectors.size_bytes
        return numbers + self.lexicon.size_bytes + _size_bytes(self.document.passages)


class Index:
    """The passages of one collection, one document behind the other. A change makes another index."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self.vocabulary: Final = Vocabulary() if vocabulary is None else vocabulary
        self.documents: Sequence[OpenDocument] = ()
        """In the order in which they came."""
        self.begins: NDArray[np.int64] = np.zeros(1, np.int64)
        """[documents + 1]: each one's first passage."""
        self.lexicon = Lexicon.of([], self.vocabulary)
        self.vectors: Vectors | None = None
        """[passages]; scale 0: it has none. None: no passage has any."""
        self.texts: NDArray[np.int64] = np.zeros(0, np.int64)
        """[passages]: the same number for the same text."""
        self._own_bytes = 0

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory, with the vocabulary."""
        return self._own_bytes + self.vocabulary.size_bytes

    def changed(self, documents: Iterable[OpenDocument], added: Mapping[int, AddedDocument]) -> "Index":
        """Returns the index of these documents, found by number here or in `added`; the rest is left out."""
        given = {each.number: each for each in documents}
        stays = np.array([each.number in given for each in self.documents], bool)
        kept = [each for each in self.documents if each.number in given]
        there = {each.number for each in kept}
        new = [replace(added[number], document=each) for number, each in given.items() if number not in there]
        rows = np.repeat(stays, np.diff(self.begins))
        own = self.lexicon if rows.all() else self.lexicon.only(rows)
        index = Index(self.vocabulary)
        index.documents = [*(given[each.number] for each in kept), *(each.document for each in new)]
        index.begins = np.cumsum([0, *(len(each.passages) for each in index.documents)])
        index.lexicon = Lexicon.joined([own, *(each.lexicon for each in new)])
        index.vectors = self._vectors(rows, new)
        texts = (hash((one.lead, one.text.strip())) for each in new for one in each.document.passages)
        index.texts = np.concatenate([self.texts[rows], np.fromiter(texts, np.int64)])
        numbers = 0 if index.vectors is None else index.vectors.size_bytes
        passages = sum(_size_bytes(each.passages) for each in index.documents)
        index._own_bytes = passages + numbers + index.lexicon.size_bytes
        return index

    def _vectors(self, rows: NDArray[np.bool_], new: Sequence[AddedDocument]) -> Vectors | None:
        parts = [self.vectors, *(each.vectors for each in new)]
        dimensions = next((each.codes.shape[1] for each in parts if each is not None), 0)
        if not dimensions:
            return None
        own = int(rows.sum())
        total = own + sum(len(each.document.passages) for each in new)
        codes, scales = np.zeros((total, dimensions), np.int8), np.zeros(total, np.float32)
        if self.vectors is not None:
            codes[:own], scales[:own] = self.vectors.codes[rows], self.vectors.scales[rows]
        for each in new:
            end = own + len(each.document.passages)
            if each.vectors is not None:
                codes[own:end], scales[own:end] = each.vectors.codes, each.vectors.scales
            own = end
        return Vectors(codes, scales)

    def chosen(self, numbers: set[int]) -> NDArray[np.bool_]:
        """Returns which passages are of these documents: [passages]."""
        return np.repeat([each.number in numbers for each in self.documents], np.diff(self.begins)).astype(bool)


class OpenDocuments(list[OpenDocument]):
    """Documents that can be searched."""

    def __init__(self, documents: Iterable[OpenDocument], indexes: Sequence[Index], unread: int = 0) -> None:
        """indexes: in which the documents are, and perhaps others."""
        super().__init__(documents)
        self.indexes: Final = indexes
        self.unread: Final = unread
        """How many documents of the collections are still being read, and so are not searched."""

    @property
    def have_vectors(self) -> bool:
        """Whether any passage can be compared with a question's vector."""
        return any(each.vectors is not None for each in self.indexes)


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    document: OpenDocument
    index: int
    """Of the passage in its document."""
    score: float
    """How near it is to the question, from 0 to 1: the cosine of their vectors, or without vectors the share that its
    words have of the highest BM25 score of the question."""
    order: float = 0.0
    """By what hits are sorted, the highest first: both rankings joined. `score` alone finds less."""

    @property
    def passage(self) -> Passage:
        """The passage as it is shown: in a table, below the table's header."""
        return self.document.passages[self.index].with_lead()


def search(documents: OpenDocuments, question: str, vector: NDArray[np.float32] | None, most: int) -> list[Hit]:
    """Returns the best passages, best first, and of passages with the same text one.

    vector: of the question, of length 1; None: words alone are searched.
    """
    if not documents:
        return []
    numbers: dict[str, set[int]] = {}
    for each in documents:
        numbers.setdefault(each.collection_id, set()).add(each.number)
    indexes = [each for each in documents.indexes if each.documents]
    rows = np.concatenate([each.chosen(numbers.get(each.documents[0].collection_id, set())) for each in indexes])
    texts = np.concatenate([each.texts for each in indexes])
    by_words = np.concatenate(scores([each.lexicon for each in indexes], question))
    by_words[~rows] = 0
    rankings, shown = [_ranked(by_words, texts, least=0.0)], by_words
    if vector is not None:
        similar = np.concatenate([_similarities(each, vector) for each in indexes])
        similar[~rows] = -np.inf
        rankings.append(_ranked(similar, texts, least=-np.inf))
        shown = np.where(similar > -np.inf, np.clip(similar, 0, 1), by_words)
    joined: dict[int, float] = {}
    places: dict[int, int] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, 1):
            text = int(texts[place])
            joined[text] = joined.get(text, 0.0) + 1 / (_RANK_OFFSET + rank)
            places.setdefault(text, place)
    best = sorted(joined, key=lambda text: -joined[text])[:most]
    return [_hit(indexes, places[text], float(shown[places[text]]), joined[text]) for text in best]


def _hit(indexes: Sequence[Index], place: int, score: float, order: float) -> Hit:
    """place: of the passage, as if all indexes were one behind the other."""
    for index in indexes:
        if place < len(index.texts):
            break
        place -= len(index.texts)
    of = int(np.searchsorted(index.begins, place, "right")) - 1
    return Hit(index.documents[of], place - int(index.begins[of]), score, order)


def _similarities(index: Index, vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the cosine of each passage, -inf of one without a vector."""
    if index.vectors is None:
        return np.full(len(index.texts), -np.inf, np.float32)
    return np.where(index.vectors.scales > 0, index.vectors.similarities(vector), np.float32(-np.inf))


def _ranked(scored: NDArray[np.float32], texts: NDArray[np.int64], *, least: float) -> list[int]:
    """Returns the passages with the best scores above `least`, best first, and of those with the same text one."""
    wanted = CANDIDATES
    while True:
        best = _best(scored, wanted)
        best = best[scored[best] > least]
        unique: dict[int, int] = {}
        for place in best.tolist():
            unique.setdefault(int(texts[place]), place)
        if len(unique) >= CANDIDATES or len(best) < wanted:
            return [*unique.values()][:CANDIDATES]
        wanted *= 4


def _best(scored: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    some = np.arange(len(scored)) if len(scored) <= most else np.argpartition(-scored, most)[:most]
    order: NDArray[np.int64] = some[np.lexsort((some, -scored[some]))]
    return order


def _size_bytes(passages: Iterable[Passage]) -> int:
    """About what passages take; strings that several share are counted once for each."""
    return sum(
        _PASSAGE_BYTES + sys.getsizeof(one.text) + len(one.heading) + len(one.mark) + len(one.lead) for one in passages
    )
