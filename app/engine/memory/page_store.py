"""What the engine needs of a place where pages are kept when memory is short or the process ends.

`app/memory` implements it with a folder of sealed files. Knows nothing of files, keys or threads.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.messages.memory import MemoryGrant, PageName, SaveOutcome

GatheredPage = NDArray[np.uint8]
"""[gathered_page_bytes], in the format of `_native.Model.gather_page`."""


class PageStore(Protocol):
    """Finds, loads and saves pages. No call blocks; callbacks come on other threads, before or after a call returns.

    Callbacks must be quick and must not raise. Each `done` is called exactly once, unless the store is closed first.
    """

    fingerprint: bytes
    """32 bytes: models with the same one compute the same bits."""
    page_bytes: int
    """Of a gathered page."""
    threads: int
    """How many pages it saves at the same time."""

    def find(self, grant: MemoryGrant, pages: Sequence[PageName], done: Callable[[int], None]) -> None:
        """Tells `done` how many of the pages, from the first on, seem to be there."""

    def load(
        self,
        grant: MemoryGrant,
        pages: Sequence[PageName],
        put: Callable[[int, GatheredPage], bool],
        done: Callable[[int, bool], None],
    ) -> None:
        """Gets pages, in order, several at a time.

        put(i, page): the i-th is there and authentic; the array is the store's again afterwards. Returns whether
        further pages are wanted. done(i, ok): for each page, after its `put` if there was one; ok: it was put.
        """

    def save(
        self,
        grant: MemoryGrant,
        page: PageName,
        fetch: Callable[[GatheredPage], bool],
        done: Callable[[SaveOutcome], None],
        *,
        durable: bool,
        paced: bool,
    ) -> None:
        """Saves a page. fetch(array): is to write the page there, at once; False: there is no such page any more.

        durable: `done` is called when the page would survive a loss of power. paced: it may take its time, so that it
        does not slow down what is computed.
        """
