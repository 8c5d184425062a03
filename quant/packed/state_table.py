"""Assigns state pages to a text while it is computed in steps; a few suffice, whatever its length.

A page of states is large, and a text continues from its last one, so earlier pages are reused. For texts that are
computed alone; `app.engine` manages the service's states.
"""

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from kernels import _native

I32 = NDArray[np.int32]

NO_PAGE: Final = -1
MOST_PAGES: Final = 4
"""The most pages that a step of one text needs."""


def needed_pages(begin: int, end: int) -> list[int]:
    """The pages that computing tokens [begin, end) reads, and those that the next step will read."""
    tokens = _native.PAGE_TOKENS
    first, last = begin // tokens, (end - 1) // tokens
    needed = {last}
    if begin >= tokens:
        needed.add(first - 1)
    if begin % tokens:
        needed.add(first)
    if end % tokens and last:
        needed.add(last - 1)
    return sorted(needed)


class TextStates:
    """The state pages of one text."""

    def __init__(self, own: Sequence[int]) -> None:
        """own: numbers of MOST_PAGES pages for this text's use only."""
        self._own = [int(page) for page in own]
        self._held: dict[int, int] = {}

    def fill(self, row: I32, begin: int, end: int) -> None:
        """Writes the text's row of the states' page table for a step that computes tokens [begin, end).

        Raises ValueError if the text is not at token `begin`.
        """
        needed = needed_pages(begin, end)
        read = [page for page in needed if page * _native.PAGE_TOKENS < begin]
        if not all(page in self._held for page in read):
            raise ValueError(f"the state behind token {begin} is not there: a text can only go on at its end")
        self._held = {index: page for index, page in self._held.items() if index in needed}
        free = [page for page in self._own if page not in self._held.values()]
        for index in needed:
            if index not in self._held:
                self._held[index] = free.pop()
        row[:] = NO_PAGE
        for index, page in self._held.items():
            row[index] = page

    def follow(self, other: Self, context_tokens: int, native: _native.Model) -> None:
        """Continues after the first `context_tokens` of another text, which keeps its pages."""
        full, rest = divmod(context_tokens, _native.PAGE_TOKENS)
        self._held = {}
        if full:
            self._held[full - 1] = other._held[full - 1]
        if rest:
            self._held[full] = self._own[0]
            native.copy_state_page(other._held[full], self._own[0])
