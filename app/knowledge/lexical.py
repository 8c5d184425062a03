"""BM25 over passages: which of them have the words of a question, rare words counting most.

Formula: Robertson and Zaragoza (2009, "The Probabilistic Relevance Framework: BM25 and Beyond"), with the inverse
document frequency that is never negative, log(1 + (N - n + 0.5) / (n + 0.5)).
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

_UNSPACED: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3\u3005-\u3007\u3041-\u3096\u3099\u309a"
    "\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Chinese and Japanese are written without spaces; Korean words end in particles."""
_ACCENTS: Final = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+"
)
_ASCII_WORD: Final = re.compile("[a-z0-9]{1,64}")
_K1: Final = 1.2
_B: Final = 0.75
_WORD_BYTES: Final = 150
"""About what a word takes in a vocabulary besides its characters: a string, a number and its place in a dictionary."""
_ENTRIES_AT_ONCE: Final = 1 << 20


def words_of(text: str) -> list[str]:
    """Returns the words of a text, whatever their case and accents, each of at most 64 characters.

    Of scripts that put no spaces between words: each character, and each pair of neighbours.
    """
    folded = text.casefold()
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", folded)))
    words = list[str]()
    for run, word in _word_pattern().findall(plain):
        if word:
            words.append(word)
        else:
            words += run
            words += map("".join, pairwise(run))
    return words


@cache
def _word_pattern() -> re.Pattern[str]:
    """Returns what finds runs without spaces and words. It takes long to make: no start of an ingress waits for it."""
    characters = map(chr, range(0x900, 0xAC00))
    # Marks that are part of a word, such as the vowel signs of Indian scripts; \w has none of them.
    signs = "".join(each for each in characters if unicodedata.category(each)[0] == "M" and not _ACCENTS.match(each))
    return re.compile(rf"([{_UNSPACED}]+)|((?:[^\W_{_UNSPACED}]|[{signs}]){{1,64}})")


class Vocabulary:
    """The words of a collection, numbered in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lock = Lock()  # the thread of a question that was given up may still add words
        self.size_bytes = 0
        """About what it takes in memory."""

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, word: str) -> int | None:
        """Returns a word's number; None: it is in no passage."""
        return self._numbers.get(word)

    def numbers(self, words: Sequence[str]) -> list[int]:
        """Returns the words' numbers, and adds those that are new."""
        with self._lock:
            known = self._numbers
            for word in words:
                if word not in known:
                    known[word] = len(known)
                    self.size_bytes += _WORD_BYTES + 2 * len(word)
            return [known[word] for word in words]


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """The words of some passages: for each word the passages that have it, all in one array."""

    vocabulary: Vocabulary = field(repr=False)
    words: NDArray[np.int32] = field(repr=False)
    """[words]: their numbers, rising."""
    begins: NDArray[np.int64] = field(repr=False)
    """[words + 1]: where each word's passages begin in `places`."""
    places: NDArray[np.int32] = field(repr=False)
    """[entries]: the passages."""
    counts: NDArray[np.uint16] = field(repr=False)
    """[entries]: how often each has the word."""
    lengths: NDArray[np.int32] = field(repr=False)
    """[passages]: how many words each has."""

    @classmethod
    def of(cls, texts: Sequence[str], vocabulary: Vocabulary | None = None) -> Self:
        """Counts the words of passages. vocabulary: to which they are added; None: a new one."""
        vocabulary = Vocabulary() if vocabulary is None else vocabulary
        numbers = [vocabulary.numbers(words_of(text)) for text in texts]
        lengths = np.fromiter(map(len, numbers), np.int32, len(texts))
        flat = np.fromiter((each for some in numbers for each in some), np.int64, int(lengths.sum()))
        owners = np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
        passages = max(len(texts), 1)
        entries, counts = np.unique(flat * passages + owners, return_counts=True)
        words, firsts = np.unique(entries // passages, return_index=True)
        return cls(
            vocabulary,
            words.astype(np.int32),
            np.append(firsts, len(entries)).astype(np.int64),
            (entries % passages).astype(np.int32),
            np.minimum(counts, 0xFFFF).astype(np.uint16),
            lengths,
        )

    @classmethod
    def joined(cls, several: Sequence[Self]) -> Self:
        """Joins at least one lexicon of the same vocabulary: the passages of one stand behind those of the other."""
        if len(several) == 1:
            return several[0]
        highest = max((int(each.words[-1]) for each in several if len(each.words)), default=-1)
        totals = np.zeros(highest + 1, np.int64)
        for each in several:
            totals[each.words] += np.diff(each.begins)
        words = np.flatnonzero(totals)
        begins = np.concatenate([[0], np.cumsum(totals[words])]).astype(np.int64)
        following = np.zeros(highest + 1, np.int64)  # of each word, where its next passages go
        following[words] = begins[:-1]
        places, counts = np.empty(begins[-1], np.int32), np.empty(begins[-1], np.uint16)
        first = 0
        for each in several:
            for low, high in each._blocks():
                own, sizes = each.words[low:high], np.diff(each.begins[low : high + 1])
                begin, end = each.begins[low], each.begins[high]
                goals = np.repeat(following[own] - each.begins[low:high], sizes)
                goals += np.arange(begin, end)
                places[goals] = each.places[begin:end] + np.int32(first)
                counts[goals] = each.counts[begin:end]
                following[own] += sizes
            first += len(each.lengths)
        lengths = np.concatenate([each.lengths for each in several])
        return cls(several[0].vocabulary, words.astype(np.int32), begins, places, counts, lengths)

    def only(self, kept: NDArray[np.bool_]) -> Self:
        """Returns the lexicon of the passages that are kept: [passages]."""
        stays = kept[self.places]
        renumbered = (np.cumsum(kept) - 1).astype(np.int32)
        begins = np.concatenate([[0], np.cumsum(stays)])[self.begins]
        there = np.diff(begins) > 0
        return type(self)(
            self.vocabulary,
            self.words[there],
            np.append(begins[:-1][there], begins[-1]).astype(np.int64),
            renumbered[self.places[stays]],
            self.counts[stays],
            self.lengths[kept],
        )

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, without the vocabulary."""
        return sum(each.nbytes for each in (self.words, self.begins, self.places, self.counts, self.lengths))

    def having(self, word: str) -> tuple[NDArray[np.int32], NDArray[np.uint16]]:
        """Returns the passages with the word, and how often each has it."""
        number = self.vocabulary.number(word)
        at = len(self.words) if number is None else int(np.searchsorted(self.words, number))
        if at == len(self.words) or self.words[at] != number:
            return self.places[:0], self.counts[:0]
        row = slice(int(self.begins[at]), int(self.begins[at + 1]))
        return self.places[row], self.counts[row]

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yields runs of words with about _ENTRIES_AT_ONCE entries, so that what joins them stays small."""
        low = 0
        while low < len(self.words):
            high = int(np.searchsorted(self.begins, self.begins[low] + _ENTRIES_AT_ONCE, "right")) - 1
            high = min(max(high, low + 1), len(self.words))
            yield low, high
            low = high


def scores(lexicons: Sequence[Lexicon], question: str) -> list[NDArray[np.float32]]:
    """Returns for each lexicon the scores of its passages, as shares of the highest that the question can get: 0 to 1.

    0: none of the question's words is in it. 1: it has all of them without end.
    """
    found = [np.zeros(len(each.lengths), np.float32) for each in lexicons]
    total = sum(len(each.lengths) for each in lexicons)
    mean = max(sum(int(each.lengths.sum()) for each in lexicons) / max(total, 1), 1.0)
    best = 0.0
    for word in dict.fromkeys(words_of(question)):
        having = [each.having(word) for each in lexicons]
        weight = _weight(total, sum(len(places) for places, _ in having))
        best += weight * (_K1 + 1)
        for score, lexicon, (places, counts) in zip(found, lexicons, having, strict=True):
            norm = np.float32(_K1) * (1 - _B + np.float32(_B / mean) * lexicon.lengths[places])
            score[places] += np.float32(weight * (_K1 + 1)) * counts / (counts + norm)
    return [score / np.float32(best or 1.0) for score in found]


def _weight(total: int, having: int) -> float:
    return float(np.log1p((total - having + 0.5) / (having + 0.5)))
