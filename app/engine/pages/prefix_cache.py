"""Finds the longest cached prefix of a text, across page groups and recurrent states.

A text can continue after n cached pages only if everything that its next token sees is cached: all n pages of layers
with full attention, and the window's pages of layers with sliding windows. If a page near the end was evicted, a
shorter prefix may still do. With recurrent layers, the state after the n pages must be cached too.

Knows names and pages, but neither sequences nor steps.
"""

from app.engine.pages.page_groups import NONE, PageGroups, name_in_group
from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import PagePool


class PrefixCache:
    """Looks up and caches the pages of texts in a pool."""

    __slots__ = ("_groups", "_pool", "_states")

    def __init__(self, pool: PagePool, groups: PageGroups, states: PagePool | None = None) -> None:
        """`states`: the pool of state pages, which are cached under the digests themselves; None: no states."""
        self._pool = pool
        self._groups = groups
        self._states = states

    def longest(self, chain: PageChain, begin: int, end: int) -> int:
        """Returns the length in pages, `begin` to `end`, of the longest prefix after which the text can continue."""
        for group, window in enumerate(self._groups.windows):
            if not window:
                gone = (index for index in range(begin, end) if not self._has(chain, index, group))
                end = next(gone, end)
        while end > begin:
            gone_page = self._last_gone(chain, begin, end)
            if gone_page is None:
                return end
            end = gone_page  # a prefix that is shorter, but has this page in view, fails too
        return begin

    def _last_gone(self, chain: PageChain, begin: int, end: int) -> int | None:
        """The last page, of states or a window, that the token after `end` pages would see but that is not cached."""
        if self._states is not None and not self._states.has(chain.digest(end - 1)):
            return end - 1
        for group, window in enumerate(self._groups.windows):
            if window:
                for index in range(end - 1, max(begin, self._groups.first_page(group, end)) - 1, -1):
                    if not self._has(chain, index, group):
                        return index
        return None

    def _has(self, chain: PageChain, index: int, group: int) -> bool:
        return self._pool.has(name_in_group(chain.digest(index), group))

    def find(self, chain: PageChain, begin: int, end: int) -> list[int]:
        """Adds a holder to pages `begin` .. `end`, a range that `longest()` has found; NONE where no page is needed."""
        groups = self._groups
        pages = [NONE] * ((end - begin) * groups.count)
        for group in range(groups.count):
            for index in range(max(begin, groups.first_page(group, end)), end):
                page = self._pool.find(name_in_group(chain.digest(index), group))
                assert page is not None, f"page {index} of group {group} is not there any more"
                pages[(index - begin) * groups.count + group] = page
        return pages

    def cache(self, chain: PageChain, pages: list[int], begin: int, end: int) -> None:
        """Caches pages `begin` .. `end` of a sequence's list, which must be full."""
        count = self._groups.count
        for index in range(begin, end):
            digest = chain.digest(index)
            for group, page in enumerate(pages[index * count : (index + 1) * count]):
                if page != NONE:
                    self._pool.cache(page, name_in_group(digest, group))
