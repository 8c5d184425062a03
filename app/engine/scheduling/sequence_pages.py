"""The pages of sequences: taken, found in the prefix cache, given back.

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
"""As `Step.new_pages`."""


class SequencePages:
    """All of one pool."""

    __slots__ = ("_cache", "_groups", "_page_tokens", "_pool")

    def __init__(self, pool: PagePool, limits: SchedulerLimits, states: PagePool | None) -> None:
        """states: the pool of state pages, in which others find a text's states; None: the model has none."""
        self._pool = pool
        self._groups = limits.groups
        self._page_tokens = limits.page_tokens
        self._cache = PrefixCache(pool, limits.groups, states)

    def count(self, sequence: SequenceState) -> int:
        """How many pages of tokens the sequence has, those included of which it has given pages back."""
        return len(sequence.pages) // self._groups.count

    def uncached(self, sequence: SequenceState) -> int:
        """Known tokens that must be computed, as far as one knows now."""
        pages = 0
        if sequence.chain is not None and not sequence.computed:
            pages = self._cache.end(sequence.chain, 0, (sequence.length - 1) // self._page_tokens)
        return sequence.length - sequence.computed - pages * self._page_tokens

    def find(self, sequence: SequenceState, chain: PageChain, end: int) -> Entries:
        """Adds the sequence's next pages, those before page `end`, as far as they are in the prefix cache."""
        begin = self.count(sequence)
        found = self._cache.end(chain, begin, end)
        if found == begin:
            return []
        self._release_unseen(sequence, found)
        sequence.pages += self._cache.find(chain, begin, found)
        self._count_cached(sequence, found - begin)
        return entries(sequence, begin * self._groups.count)

    def add_loaded(self, sequence: SequenceState, chain: PageChain, pages: Sequence[int]) -> Entries:
        """Adds pages that hold the sequence's next tokens, with one page group."""
        first = len(sequence.pages)
        sequence.pages += pages
        self._cache.keep(chain, sequence.pages, first, len(sequence.pages))
        self._count_cached(sequence, len(pages))
        return entries(sequence, first)

    def extend(self, sequence: SequenceState, count: int) -> Entries:
        """Takes free pages for `count` more pages of tokens, or for as many as there are."""
        first = len(sequence.pages)
        groups = self._groups.count
        sequence.pages += self._pool.take(max(min(count, self._pool.free_count // groups), 0) * groups)
        return entries(sequence, first)

    def copy_of_last(self, sequence: SequenceState, index: int) -> list[tuple[int, int]]:
        """Takes pages in place of page `index`, which others hold too; returns what to copy, as (source, target)."""
        groups = self._groups.count
        places = slice(index * groups, (index + 1) * groups)
        shared = sequence.pages[places]
        own = self._pool.take(groups)
        self._pool.release(shared)
        sequence.pages[places] = own
        return list(zip(shared, own, strict=True))

    def is_shared(self, sequence: SequenceState, index: int) -> bool:
        """Whether others hold page `index` too, which is not full: then they hold it of all groups."""
        return self._pool.holders(sequence.pages[index * self._groups.count]) > 1

    def share(self, sequence: SequenceState, parent: SequenceState) -> Entries:
        """Gives the sequence all pages of `parent`, which keeps them."""
        sequence.pages = list(parent.pages)
        self._pool.share(held(sequence.pages))
        return entries(sequence, 0)

    def keep(self, sequence: SequenceState) -> None:
        """Caches the full pages of the sequence."""
        full = min(sequence.computed, sequence.length) // self._page_tokens
        if sequence.kept_pages < full and sequence.chain is not None:
            self._cache.keep(sequence.chain, sequence.pages, sequence.kept_pages, full)
            sequence.kept_pages = full

    def settle(self, sequence: SequenceState) -> None:
        """Caches the full pages of the sequence, and gives back those that no later token sees."""
        self.keep(sequence)
        if self._groups.windowed:
            self._release_unseen(sequence, min(sequence.computed, sequence.length) // self._page_tokens)

    def give_back(self, sequence: SequenceState) -> None:
        """Caches the full pages and releases all."""
        self.keep(sequence)
        self._pool.release(held(reversed(sequence.pages)))  # the cache loses the last pages first
        self._pool.release(reversed(sequence.sinks))
        sequence.pages = []
        sequence.sinks = []
        sequence.computed = sequence.kept_pages = 0

    def _release_unseen(self, sequence: SequenceState, full_pages: int) -> None:
        """Gives back what is not seen behind so many full pages."""
        unseen = list(self._groups.unseen(sequence.pages, full_pages))
        self._pool.release([sequence.pages[entry] for entry in reversed(unseen)])
        for entry in unseen:
            sequence.pages[entry] = NONE

    def _count_cached(self, sequence: SequenceState, pages: int) -> None:
        """The sequence has got so many pages that it need not compute."""
        if pages:
            sequence.computed += pages * self._page_tokens
            sequence.kept_pages = self.count(sequence)
            if not sequence.restarted:
                sequence.cached_tokens += pages * self._page_tokens


def entries(sequence: SequenceState, first: int) -> Entries:
    """A sequence's page table entries from `first` on, to be written."""
    return [
        (sequence.slot, entry, page) for entry, page in enumerate(sequence.pages[first:], start=first) if page != NONE
    ]
