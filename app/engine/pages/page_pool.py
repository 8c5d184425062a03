"""Allocates KV pages: which are free, how many sequences hold each of the others, and which are cached.

A page with a digest (page_names.py) stays cached after its last holder releases it, until the space is needed; eviction
is LRU. Nobody may write to a page with a digest, or with more than one holder.

Handles page numbers, counts and digests only. Does not know what a page contains, where its bytes are, or which
sequence holds it at which position.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

OnPageEvicted = Callable[[int, bytes], None]
"""Receives (page, digest) just before a cached page is evicted; its bytes are intact until the call returns. Runs on
the engine's thread between two steps: it must be quick, must not block, must not raise and must not use the pool."""


class PagePool:
    """The pages of the KV cache, numbered from 0. A page is free or held by sequences; either kind may be cached."""

    __slots__ = ("_cached", "_digests", "_free", "_holders", "_idle", "_on_evicted", "_repeats")

    def __init__(self, page_count: int, on_evicted: OnPageEvicted | None = None) -> None:
        """Starts with all pages free.

        Raises ValueError. `on_evicted` is called with each page that leaves the cache.
        """
        if page_count < 1:
            raise ValueError(f"a KV cache has at least one page, not {page_count}")
        self._holders = [0] * page_count
        # A stack: the pages used last, still in the CPU's caches, are used next.
        self._free = list(range(page_count - 1, -1, -1))
        self._cached: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}  # page -> digest
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached pages without holders, least recently used first
        self._repeats = 0
        self._on_evicted = on_evicted

    @property
    def page_count(self) -> int:
        return len(self._holders)

    @property
    def free_count(self) -> int:
        """Number of pages without holders, cached ones included."""
        return len(self._free) + len(self._idle)

    @property
    def used_count(self) -> int:
        """Number of pages with holders; a shared one counts once."""
        return len(self._holders) - len(self._free) - len(self._idle)

    @property
    def cached_count(self) -> int:
        """Number of pages that can be found by their digest, held or free."""
        return len(self._cached)

    @property
    def repeat_count(self) -> int:
        """How many pages sharing saves: the holders beyond the first of each page."""
        return self._repeats

    def holders(self, page: int) -> int:
        return self._holders[page]

    def allocate(self, count: int) -> list[int]:
        """Allocates `count` free pages, each with one holder; there must be that many. Evicts cached ones last."""
        assert 0 <= count <= self.free_count, f"{count} pages taken of {self.free_count} free ones"
        if count == 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        while len(pages) < count:
            page, _ = self._idle.popitem(last=False)
            digest = self._digests.pop(page)
            del self._cached[digest]
            if self._on_evicted is not None:
                self._on_evicted(page, digest)
            pages.append(page)
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds a holder to each of `pages`, which must all be held."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free and can't be shared"
            self._holders[page] += 1
            self._repeats += 1

    def release(self, pages: Iterable[int], *, evict_first: bool = False) -> None:
        """Removes a holder from each page, which is free once it has none. Cached ones are evicted in this order.

        evict_first: before all others; else after them.
        """
        for page in reversed(list(pages)) if evict_first else pages:
            holders = self._holders[page] = self._holders[page] - 1
            assert holders >= 0, f"page {page} is released more often than it was taken"
            if holders:
                self._repeats -= 1
            elif page in self._digests:
                self._idle[page] = None
                if evict_first:
                    self._idle.move_to_end(page, last=False)
            else:
                self._free.append(page)

    def cache(self, page: int, digest: bytes) -> None:
        """Caches a held, full page under `digest`, unless another page has that digest."""
        assert self._holders[page] > 0, f"page {page} is free and can't be kept"
        if digest not in self._cached:
            assert page not in self._digests, f"page {page} has a digest already"
            self._cached[digest] = page
            self._digests[page] = digest

    def forget(self, digest: bytes) -> int | None:
        """Removes the page with that digest from the cache without calling the listener.

        Returns the page if it is free, so that it can be cleared; None if there is none, or sequences still hold it.
        """
        page = self._cached.pop(digest, None)
        if page is None:
            return None
        del self._digests[page]
        if self._holders[page]:
            return None
        del self._idle[page]
        self._free.append(page)
        return page

    def evict_all(self) -> None:
        """Evicts every cached page that nobody holds."""
        held = self.allocate(self.free_count)
        self.release(held)

    def is_cached(self, page: int) -> bool:
        """Whether the page can be found by a digest."""
        return page in self._digests

    def has(self, digest: bytes) -> bool:
        """Whether `find` would find a page."""
        return digest in self._cached

    def find(self, digest: bytes) -> int | None:
        """Finds the page cached under `digest` and adds a holder; None if there is none."""
        page = self._cached.get(digest)
        if page is not None:
            if self._holders[page]:
                self._repeats += 1
            else:
                del self._idle[page]
            self._holders[page] += 1
        return page
