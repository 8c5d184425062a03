"""How much of a text the prefix cache has, where every page group has pages of its own.

A text can go on behind n pages if the cache has everything that its next token sees: of layers that see the whole text
all n pages, and of the others those of their window. So a text of which the last pages are forgotten may still go on
behind fewer. Where layers have a recurrent state, the state behind the n pages must be cached too.

Knows names and pages, but neither sequences nor steps.
"""

from app.engine.pages.page_groups import NONE, PageGroups, name_in_group
from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import PagePool


class PrefixCache:
    """Looks up and names the pages of texts in a pool."""

    __slots__ = ("_groups", "_pool", "_states")

    def __init__(self, pool: PagePool, groups: PageGroups, states: PagePool | None = None) -> None:
        """states: state pages, whose names are the digests; None: the model has none."""
        self._pool = pool
        self._groups = groups
        self._states = states

    def end(self, chain: PageChain, begin: int, end: int) -> int:
        """Behind how many pages the text can go on: the most from `begin`, whose pages its sequence has, to `end`."""
        for group, window in enumerate(self._groups.windows):
            if not window:
                gone = (index for index in range(begin, end) if not self._has(chain, index, group))
                end = next(gone, end)
        while end > begin:
            gone_page = self._last_gone(chain, begin, end)
            if gone_page is None:
                return end
            end = gone_page  # what is behind fewer pages, but behind this one, sees it too
        return begin

    def _last_gone(self, chain: PageChain, begin: int, end: int) -> int | None:
        """The last page that the token behind page `end` would see, of states or a window, and that is not there."""
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
        """Adds a holder to pages `begin` .. `end`, as `end()` has found it; NONE where none is needed."""
        groups = self._groups
        pages = [NONE] * ((end - begin) * groups.count)
        for group in range(groups.count):
            for index in range(max(begin, groups.first_page(group, end)), end):
                page = self._pool.find(name_in_group(chain.digest(index), group))
                assert page is not None, f"page {index} of group {group} is not there any more"
                pages[(index - begin) * groups.count + group] = page
        return pages

    def keep(self, chain: PageChain, pages: list[int], begin: int, end: int) -> None:
        """Names pages `begin` .. `end` of a sequence's list, which are full, so that they can be found."""
        count = self._groups.count
        for index in range(begin, end):
            digest = chain.digest(index)
            for group, page in enumerate(pages[index * count : (index + 1) * count]):
                if page != NONE:
                    self._pool.keep(page, name_in_group(digest, group))
