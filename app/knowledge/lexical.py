"""BM25 over passages: which of them have the words of a question, rare words counting most.

Formula: Robertson and Zaragoza (2009, "The Probabilistic Relevance Framework: BM25 and Beyond"), with the inverse
document frequency that is never negative, log(1 + (N - n + 0.5) / (n + 0.5)).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_WORD: Final = re.compile(r"\w+")
_K1: Final = 1.2
_B: Final = 0.75
_WORD_BYTES: Final = 500
"""About what a word takes in a lexicon besides its places: a string, a tuple and two arrays in a dictionary."""


def words_of(text: str) -> list[str]:
    """Returns the words of a text, whatever their case and accents."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(each for each in plain if not unicodedata.combining(each)))


class Lexicon:
    """The words of one document's passages."""

    def __init__(self, texts: Sequence[str]) -> None:
        found: dict[str, list[tuple[int, int]]] = {}
        self.lengths: Final = np.zeros(len(texts), np.float32)
        """[n]: how many words each passage has."""
        for index, text in enumerate(texts):
            words = words_of(text)
            self.lengths[index] = len(words)
            for word, count in Counter(words).items():
                found.setdefault(word, []).append((index, count))
        self._places: Final = {
            word: (np.array([place for place, _ in places]), np.array([count for _, count in places], np.float32))
            for word, places in found.items()
        }
        places_bytes = sum(place.nbytes + count.nbytes for place, count in self._places.values())
        self.size_bytes: Final = self.lengths.nbytes + places_bytes + _WORD_BYTES * len(found)
        """About what it takes in memory."""

    def places(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Returns the passages with the word, and how often each has it; None: none has it."""
        return self._places.get(word)


def scores(lexicons: Sequence[Lexicon], question: str) -> list[NDArray[np.float32]]:
    """Returns for each document the scores of its passages; 0: none of the question's words is in it."""
    found = [np.zeros(len(each.lengths), np.float32) for each in lexicons]
    total = sum(len(each.lengths) for each in lexicons)
    if not total:
        return found
    mean = max(sum(float(each.lengths.sum()) for each in lexicons) / total, 1.0)
    for word in dict.fromkeys(words_of(question)):
        places = [each.places(word) for each in lexicons]
        having = sum(len(each[0]) for each in places if each is not None)
        weight = np.float32(np.log1p((total - having + 0.5) / (having + 0.5)))
        for score, lexicon, each in zip(found, lexicons, places, strict=True):
            if each is not None:
                index, count = each
                norm = _K1 * (1 - _B + _B * lexicon.lengths[index] / mean)
                score[index] += weight * count * (_K1 + 1) / (count + norm)
    return found
