"""The open passages of one collection, in memory, and the search in them.

Exact: a product with all vectors, and BM25 over all passages, joined by reciprocal ranks (Cormack, Clarke and Büttcher,
2009). So there is no structure to build, to store or to leak.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.knowledge.lexical import Lexicon, scores
from app.knowledge.passages import Passage, Vectors

_RANK_OFFSET: Final = 60
"""Of reciprocal ranks, as in the paper."""
CANDIDATES: Final = 50
"""How many of each ranking are joined."""


@dataclass(frozen=True, slots=True)
class OpenDocument:
    """A document whose passages were opened."""

    file_id: str
    name: str = field(repr=False)
    passages: Sequence[Passage] = field(repr=False)
    lexicon: Lexicon = field(repr=False)
    vectors: Vectors | None = field(default=None, repr=False)
    """Of the encoder that is served now; None: there is none."""
    attributes: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        numbers = 0 if self.vectors is None else self.vectors.codes.nbytes + self.vectors.scales.nbytes
        return numbers + self.lexicon.size_bytes + sum(4 * len(passage.text) + 400 for passage in self.passages)


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    document: OpenDocument
    index: int
    """Of the passage in its document."""
    score: float
    """From 0 to 1."""

    @property
    def passage(self) -> Passage:
        return self.document.passages[self.index]


def search(
    documents: Iterable[OpenDocument],
    question: str,
    vector: NDArray[np.float32] | None,
    most: int,
) -> list[Hit]:
    """Returns the best passages, best first. vector: of the question, of length 1; None: words alone are searched."""
    chosen = [document for document in documents if document.passages]
    rankings = [_ranked(scores([document.lexicon for document in chosen], question), least=0.0)]
    if vector is not None:
        similar = [
            np.full(len(document.passages), -np.inf, np.float32)
            if document.vectors is None
            else document.vectors.similarities(vector)
            for document in chosen
        ]
        rankings.append(_ranked(similar, least=-np.inf))
    joined: dict[tuple[int, int], float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, 1):
            joined[place] = joined.get(place, 0.0) + 1 / (_RANK_OFFSET + rank)
    best = sorted(joined, key=lambda place: (-joined[place], place))[:most]
    highest = len(rankings) / (_RANK_OFFSET + 1)
    return [Hit(chosen[document], index, joined[document, index] / highest) for document, index in best]


def _ranked(scored: Sequence[NDArray[np.float32]], *, least: float) -> list[tuple[int, int]]:
    """Returns document and passage of the best scores above `least`, best first."""
    if not scored:
        return []
    flat = np.concatenate(scored)
    owners = np.repeat(np.arange(len(scored)), [len(each) for each in scored])
    begins = np.cumsum([0, *(len(each) for each in scored)])
    best = np.lexsort((np.arange(len(flat)), -flat))[:CANDIDATES] if len(flat) <= CANDIDATES else _best(flat)
    return [(int(owners[at]), int(at - begins[owners[at]])) for at in best if flat[at] > least]


def _best(flat: NDArray[np.float32]) -> NDArray[np.int64]:
    some = np.argpartition(-flat, CANDIDATES)[:CANDIDATES]
    order: NDArray[np.int64] = some[np.lexsort((some, -flat[some]))]
    return order
