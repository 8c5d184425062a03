"""Which KV pages are free, and how many sequences hold each of the others.

Page numbers and counts only: what a page contains, which sequence holds it at which position, and where its bytes lie
are known to others. A count above one means a shared page, which nobody may write to.
"""

from collections.abc import Iterable


class PagePool:
    """The KV cache's pages, numbered from 0; each is free or held by one or more sequences."""

    __slots__ = ("_free", "_holders")

    def __init__(self, page_count: int) -> None:
        if page_count < 1:
            raise ValueError(f"a KV cache has at least one page, not {page_count}")
        self._holders = [0] * page_count
        # A stack, so that the pages used last, still in the CPU's caches, are used next.
        self._free = list(range(page_count - 1, -1, -1))

    @property
    def page_count(self) -> int:
        """All pages."""
        return len(self._holders)

    @property
    def free_count(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def used_count(self) -> int:
        """Pages that somebody holds; a shared one counts once."""
        return len(self._holders) - len(self._free)

    def holders(self, page: int) -> int:
        """How many sequences hold `page`."""
        return self._holders[page]

    def take(self, count: int) -> list[int]:
        """Takes `count` free pages, each held once; there must be that many."""
        assert 0 <= count <= len(self._free), f"{count} pages taken of {len(self._free)} free ones"
        if count == 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds a holder to each of `pages`, which must be held already."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free and can't be shared"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Removes a holder from each of `pages`; a page without holders is free."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is released more often than it was taken"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)
