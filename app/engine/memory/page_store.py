"""What the engine needs of a store for KV pages that don't fit in memory or must outlive the process.

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
    """Finds, loads and saves KV pages. No call blocks; callbacks come on other threads, before or after a call returns.

    Callbacks must be quick and must not raise. Each `done` is called exactly once, unless the store is closed first.
    """

    fingerprint: bytes
    """32 bytes, equal for models that compute the same bits."""
    page_bytes: int
    """Size of a gathered page."""
    threads: int
    """How many pages it saves at the same time."""

    def find(self, grant: MemoryGrant, pages: Sequence[PageName], done: Callable[[int], None]) -> None:
        """Calls `done` with the number of pages, from the first on, that seem to be stored."""

    def load(
        self,
        grant: MemoryGrant,
        pages: Sequence[PageName],
        put: Callable[[int, GatheredPage], bool],
        done: Callable[[int, bool], None],
    ) -> None:
        """Loads pages in order, several at a time.

        put(i, page): page i is authentic; the array is only valid during the call. Returns whether further pages are
            wanted.
        done(i, ok): called for each page, after its `put` if there was one. ok: it was put.
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
        """Saves a page.

        fetch(array): writes the page to the array at once; returns False if there is no such page any more.
        durable: `done` is called only when the page would survive a loss of power.
        paced: saving may take its time, so that it does not slow down what is computed.
        """
