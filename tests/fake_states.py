"""State pages of a model without weights, which detect every mistake of an engine's paging.

A page has what the real one has: the state behind its last token, and rows of its tokens. The "output" of a token is a
hash of the state before its page, of the rows of its page up to it, and of the last tokens before it, as a convolution
sees them. Nothing else is kept between steps. Pages are written wherever the page table has one, also by guesses.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NONE = -1
_TAPS = 4
_MASK = (1 << 62) - 1


def taps_of(page_tokens: int) -> int:
    """How many tokens the convolution sees: none before the page before."""
    return min(_TAPS, page_tokens + 1)


def mixed(state: int, value: int) -> int:
    """Another state, which depends on both."""
    return ((state ^ (value + 1)) * 0x9E3779B97F4A7C15 + (state >> 29) + 0x632BE59BD9B4E019) & _MASK


def recurrent_hash(tokens: Sequence[int], page_tokens: int) -> int:
    """What the last of the tokens gives, computed from the first on."""
    state, output, taps = 0, 0, taps_of(page_tokens)
    for index in range(len(tokens)):
        if index % page_tokens == 0:
            state = output
        output = mixed(output, row_of(tokens[max(index + 1 - taps, 0) : index + 1]))
    return mixed(state, output)


def row_of(tokens: Sequence[int]) -> int:
    """A token's row: it depends on the tokens that its convolution sees."""
    row = len(tokens)
    for token in tokens:
        row = mixed(row, token)
    return row


class FakeStatePages:
    """The memory of states, and how a sequence's tokens are computed with it."""

    def __init__(self, count: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._garbage = np.random.default_rng(5)
        self._ends = self._random(count)
        self._rows = self._random(count * page_tokens).reshape(count, page_tokens)
        self._tokens = self._random(count * page_tokens).reshape(count, page_tokens)  # inputs of the convolution
        self._read: set[int] = set()
        self._written: list[int] = []

    def _random(self, count: int) -> NDArray[np.int64]:
        return self._garbage.integers(0, _MASK, size=count, dtype=np.int64)

    def spoil(self, pages: Sequence[int]) -> None:
        """Overwrites pages that nobody has."""
        for page in pages:
            self._ends[page] = self._random(1)[0]
            self._rows[page], self._tokens[page] = self._random(self.page_tokens), self._random(self.page_tokens)

    def copy(self, source: int, target: int) -> None:
        assert source != target
        self._ends[target] = self._ends[source]
        self._rows[target] = self._rows[source]
        self._tokens[target] = self._tokens[source]

    def compute(self, table: NDArray[np.int32], begin: int, new: list[int]) -> list[int]:
        """Of a sequence's new tokens, which begin there: what each gives. Writes the pages of its table."""
        size, end, taps = self.page_tokens, begin + len(new), taps_of(self.page_tokens)
        first, last = begin // size, (end - 1) // size
        self._check(table, begin, end)
        state, before = 0, []  # `before`: the tokens that the convolution of the first new one sees
        if first:
            page = int(table[first - 1])
            self._read.add(page)
            state, before = int(self._ends[page]), self._tokens[page].tolist()
        output, rows = state, []
        if filled := begin % size:
            page = int(table[first])
            rows, before = self._rows[page, :filled].tolist(), before + self._tokens[page, :filled].tolist()
            for row in rows:
                output = mixed(output, row)
        self._written += [int(page) for page in table[first : last + 1] if page != NONE]
        text, outputs = before + new, []
        for index in range(begin, end):
            place = len(before) + index - begin
            if index % size == 0:
                state = output
            seen = text[max(place + 1 - taps, 0) : place + 1]
            row = row_of(seen)
            output = mixed(output, row)
            outputs.append(mixed(state, output))
            page = int(table[index // size])
            if page != NONE:
                self._rows[page, index % size], self._tokens[page, index % size] = row, new[index - begin]
                if index % size == size - 1:
                    self._ends[page] = output
        return outputs

    def _check(self, table: NDArray[np.int32], begin: int, end: int) -> None:
        """Entries that the engine must give, and those that may be NONE."""
        size = self.page_tokens
        needed = {(end - 1) // size, begin // size - 1}
        if begin % size:
            needed.add(begin // size)
        if end % size:
            needed.add((end - 1) // size - 1)
        for index in needed - {-1}:
            assert 0 <= table[index] < len(self._ends), f"page {index} of tokens {begin} to {end} has no state page"
        entries = table[begin // size : (end - 1) // size + 1]
        assert ((entries >= NONE) & (entries < len(self._ends))).all(), f"entries {entries}"

    def end_step(self) -> None:
        """No page may be written that another sequence reads or writes: their order in the step is open."""
        written, self._written = self._written, []
        read, self._read = self._read, set()
        assert len(written) == len(set(written)), "two sequences write to one state page"
        assert not read & set(written), "one sequence writes to the state that another reads"
