"""Allocates, finds in the prefix cache, and frees the KV pages of sequences.

Fills `SequenceState.pages`, the counts that go with it, and a step's page table entries. Does not know which sequence
gets pages when there are too few (scheduler.py).
"""

from collections.abc import Sequence

from app.engine.pages.page_groups import NONE, held
from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import PagePool
from app.engine.pages.prefix_cache import PrefixCache
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.sequence import SequenceState

Entries = list[tuple[int, int, int]]
"""Page table entries as in `Step.new_pages`."""


class SequencePages:
    """The pages of all sequences, from one pool."""

    __slots__ = ("_cache", "_groups", "_page_tokens", "_pool")

    def __init__(self, pool: PagePool, limits: SchedulerLimits, states: PagePool | None) -> None:
        """states: the pool of state pages, which also holds cached states; None: the model has none."""
        self._pool = pool
        self._groups = limits.groups
        self._page_tokens = limits.page_tokens
        self._cache = PrefixCache(pool, limits.groups, states)

    def count(self, sequence: SequenceState) -> int:
        """How many pages of tokens the sequence has, freed ones included."""
        return len(sequence.pages) // self._groups.count

    def uncached(self, sequence: SequenceState) -> int:
        """Known tokens that must be computed, according to the present cache."""
        pages = 0
        if sequence.chain is not None and not sequence.computed:
            pages = self._cache.longest(sequence.chain, 0, (sequence.length - 1) // self._page_tokens)
        return sequence.length - sequence.computed - pages * self._page_tokens

    def find(self, sequence: SequenceState, chain: PageChain, end: int) -> Entries:
        """Adds those of the sequence's next pages, up to page `end`, that are in the prefix cache."""
        begin = self.count(sequence)
        found = self._cache.longest(chain, begin, end)
        if found == begin:
            return []
        self._release_unseen(sequence, found)
        sequence.pages += self._cache.find(chain, begin, found)
        self._count_cached(sequence, found - begin)
        return entries(sequence, begin * self._groups.count)

    def add_loaded(self, sequence: SequenceState, chain: PageChain, pages: Sequence[int]) -> Entries:
        """Adds loaded pages with the sequence's next tokens. Only for one page group."""
        first = len(sequence.pages)
        sequence.pages += pages
        self._cache.cache(chain, sequence.pages, first, len(sequence.pages))
        self._count_cached(sequence, len(pages))
        return entries(sequence, first)

    def extend(self, sequence: SequenceState, count: int) -> Entries:
        """Allocates `count` more pages of tokens, or as many as are free."""
        first = len(sequence.pages)
        groups = self._groups.count
        sequence.pages += self._pool.allocate(max(min(count, self._pool.free_count // groups), 0) * groups)
        return entries(sequence, first)

    def copy_of_last(self, sequence: SequenceState, index: int) -> list[tuple[int, int]]:
        """Replaces page `index`, which others hold too, by a new page.

        Returns the copies to make, as (source, target).
        """
        groups = self._groups.count
        places = slice(index * groups, (index + 1) * groups)
        shared = sequence.pages[places]
        own = self._pool.allocate(groups)
        self._pool.release(shared)
        sequence.pages[places] = own
        return list(zip(shared, own, strict=True))

    def is_shared(self, sequence: SequenceState, index: int) -> bool:
        """Whether others hold page `index` too. The page is not full, so all groups' pages are shared alike."""
        return self._pool.holders(sequence.pages[index * self._groups.count]) > 1

    def share(self, sequence: SequenceState, parent: SequenceState) -> Entries:
        """Gives the sequence all pages of `parent`, which keeps them."""
        sequence.pages = list(parent.pages)
        self._pool.share(held(sequence.pages))
        return entries(sequence, 0)

    def cache_full(self, sequence: SequenceState) -> None:
        full = min(sequence.computed, sequence.length) // self._page_tokens
        if sequence.kept_pages < full and sequence.chain is not None:
            self._cache.cache(sequence.chain, sequence.pages, sequence.kept_pages, full)
            sequence.kept_pages = full

    def settle(self, sequence: SequenceState) -> None:
        """Caches the full pages of the sequence and frees those that no later token sees."""
        self.cache_full(sequence)
        if self._groups.windowed:
            self._release_unseen(sequence, min(sequence.computed, sequence.length) // self._page_tokens)

    def release(self, sequence: SequenceState) -> None:
        self.cache_full(sequence)
        # The end of the text is evicted first, and batches' texts before others'.
        self._pool.release(held(reversed(sequence.pages)), evict_first=sequence.is_batch)
        self._pool.release(reversed(sequence.sinks))
        sequence.pages = []
        sequence.sinks = []
        sequence.computed = sequence.kept_pages = 0

    def _release_unseen(self, sequence: SequenceState, full_pages: int) -> None:
        """Frees the pages that no token after `full_pages` full pages sees."""
        unseen = list(self._groups.unseen(sequence.pages, full_pages))
        self._pool.release([sequence.pages[entry] for entry in reversed(unseen)])
        for entry in unseen:
            sequence.pages[entry] = NONE

    def _count_cached(self, sequence: SequenceState, pages: int) -> None:
        """Counts `pages` pages that the sequence need not compute."""
        if pages:
            sequence.computed += pages * self._page_tokens
            sequence.kept_pages = self.count(sequence)
            if not sequence.restarted:
                sequence.cached_tokens += pages * self._page_tokens


def entries(sequence: SequenceState, first: int) -> Entries:
    """Returns a sequence's page table entries from `first` on, to be written."""
    return [
        (sequence.slot, entry, page) for entry, page in enumerate(sequence.pages[first:], start=first) if page != NONE
    ]
