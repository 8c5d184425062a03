"""Allocates, finds in the prefix cache, copies and frees the state pages of sequences.

Layers with a recurrent state keep it in pages too. Page i of a sequence has the state after its tokens, and what the
tokens inside it need (kernels/model/state_pages.h). Computing tokens from b on needs page b // page_tokens - 1, and
their own page if tokens before b are in it. A step writes its last token's page, and the page before it if that one is
not full; pages that lie wholly inside a step are not needed.

So between two steps a sequence holds at most two pages, however long its text is, and the pool has two for every
sequence that can run. The other pages, the spare ones, serve steps of several pages, draft tokens and the prefix cache.
Without spare pages a step computes fewer tokens, but always some: no sequence ever waits for a state page.

A state page is as large as hundreds of KV pages, so few are cached: every KEPT_EVERY-th of a text, the last one of a
prompt that an equal prompt can use, and the last full one of a sequence that ends or is preempted.

Knows neither keys and values nor what is in a state.
"""

from collections.abc import Iterable
from typing import Final

from app.engine.pages.page_groups import NONE
from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import PagePool
from app.engine.scheduling.limits import STATE_PAGES_EACH, SchedulerLimits
from app.engine.scheduling.sequence import SequenceState, Step

KEPT_EVERY: Final = 16


class SequenceStates:
    """The state pages of all sequences, from one pool."""

    __slots__ = ("_new_entries", "_page_tokens", "_spare", "_spare_left", "pool")

    def __init__(self, limits: SchedulerLimits) -> None:
        """Starts with all pages free."""
        self.pool = PagePool(limits.state_pages)
        self._page_tokens = limits.page_tokens
        self._spare = self._spare_left = limits.state_pages - STATE_PAGES_EACH * limits.max_sequences
        self._new_entries: list[tuple[int, int, int]] = []  # of branches made since the last step

    def begin_step(self, running: Iterable[SequenceState], step: Step) -> None:
        """Starts to plan a step. Afterwards every sequence holds at most two pages."""
        page_tokens = self._page_tokens
        for sequence in running:
            if len(sequence.states) > STATE_PAGES_EACH or sequence.computed % page_tokens == 0:
                self.settle(sequence)
        self._spare_left = self._spare
        step.new_state_pages, self._new_entries = self._new_entries, step.new_state_pages

    def find(self, sequence: SequenceState, chain: PageChain, step: Step) -> None:
        """Adds the cached state after the sequence's cached pages."""
        index = sequence.computed // self._page_tokens - 1
        page = self.pool.find(chain.digest(index))
        assert page is not None, f"state page {index} is not there any more"
        self.pool.release(sequence.states.values())
        sequence.states = {index: page}
        step.new_state_pages.append((sequence.slot, index, page))

    def next_kept(self, sequence: SequenceState) -> int | None:
        """The next page of its prompt that it will cache and an equal prompt could use; None: there is none."""
        begin, last = sequence.computed // self._page_tokens, self._last_of_prompt(sequence)
        return None if begin > last else min(_next_on_grid(begin), last)

    def fitting(self, sequence: SequenceState, count: int) -> int:
        """How many of the next `count` tokens, at least one, a step can compute with the spare pages."""
        page_tokens, begin = self._page_tokens, sequence.computed
        end, index = begin + count, begin // page_tokens
        if end > sequence.length:  # draft tokens
            return min(count, (index + 1 + self._spare_left) * page_tokens - begin)
        for possible in (end, end // page_tokens * page_tokens):
            if possible > begin and self._extra(self._needed(begin, possible)) <= self._spare_left:
                return possible - begin
        return (index + 1) * page_tokens - begin

    def claim(self, sequence: SequenceState, count: int, step: Step) -> None:
        """Takes the pages for the next `count` tokens, as `fitting` allows, and notes what to copy before the step."""
        page_tokens, begin, states = self._page_tokens, sequence.computed, sequence.states
        first, filled = divmod(begin, page_tokens)
        is_shared = filled > 0 and self.pool.holders(states[first]) > 1
        if 0 < filled <= page_tokens - count and not is_shared:
            return  # the page table has both pages
        assert first == 0 or first - 1 in states, f"the state behind page {first - 1} is lost"
        last = (begin + count - 1) // page_tokens
        if is_shared:
            self._copy(sequence, first, step)
        drafts = begin + count > sequence.length
        wanted = set(range(first, last + 1)) if drafts else self._needed(begin, begin + count)
        self._spare_left -= self._extra(wanted | states.keys())
        assert self._spare_left >= 0, "a step of more tokens than fit"
        missing = sorted(wanted - states.keys())
        states.update(zip(missing, self.pool.allocate(len(missing)), strict=True))
        step.new_state_pages += [
            (sequence.slot, index, states.get(index, NONE)) for index in range(max(first - 1, 0), last + 1)
        ]

    def claim_cached(self, sequence: SequenceState, count: int, step: Step) -> None:
        """Takes pages to cache that these tokens fill and the step does not need, the last ones, as far as there are.

        Call it when all sequences of the step have what they need.
        """
        chain, begin = sequence.chain, sequence.computed
        if chain is None or begin + count > sequence.length:
            return
        first, full = begin // self._page_tokens, (begin + count) // self._page_tokens
        filled = {*range(_next_on_grid(first), full, KEPT_EVERY)}
        if first <= (last := self._last_of_prompt(sequence)) < full:
            filled.add(last)
        absent = (index for index in filled - sequence.states.keys() if not self.pool.has(chain.digest(index)))
        chosen = sorted(absent, reverse=True)[: self._spare_left]
        self._spare_left -= len(chosen)
        for index, page in zip(chosen, self.pool.allocate(len(chosen)), strict=True):
            sequence.states[index] = page
            step.new_state_pages.append((sequence.slot, index, page))

    def share(self, sequence: SequenceState, parent: SequenceState) -> None:
        """Gives the sequence all pages of `parent`, which keeps them."""
        sequence.states = dict(parent.states)
        self.pool.share(sequence.states.values())
        self._new_entries += [(sequence.slot, index, page) for index, page in sequence.states.items()]

    def settle(self, sequence: SequenceState) -> None:
        """Caches full pages and frees those that the next token does not need."""
        known = min(sequence.computed, sequence.length)  # accepted draft tokens may not be in the text yet
        full, last = known // self._page_tokens, (sequence.computed - 1) // self._page_tokens
        gone = []
        for index, page in sequence.states.items():
            if index < full and sequence.chain is not None and self._is_kept(sequence, index):
                self.pool.cache(page, sequence.chain.digest(index))
            if not full - 1 <= index <= last:
                gone.append(index)
        if gone:
            self.pool.release([sequence.states.pop(index) for index in gone])

    def release(self, sequence: SequenceState) -> None:
        """Caches the last full page of a sequence that ends or is preempted, and frees all."""
        self.settle(sequence)
        last = min(sequence.computed, sequence.length) // self._page_tokens - 1
        # Only one of the branches becomes the answer.
        is_branch = sequence.group is not None and sequence.group.branched
        if sequence.chain is not None and last in sequence.states and not is_branch:
            self.pool.cache(sequence.states[last], sequence.chain.digest(last))
        self.pool.release(sequence.states.values(), evict_first=sequence.is_batch)
        sequence.states = {}

    def _needed(self, begin: int, end: int) -> set[int]:
        """Pages that a step reads or writes to compute tokens [begin, end), without draft tokens."""
        first, last = begin // self._page_tokens, (end - 1) // self._page_tokens
        needed = {first - 1, last}
        if begin % self._page_tokens:
            needed.add(first)
        if end % self._page_tokens:
            needed.add(last - 1)
        needed.discard(-1)
        return needed

    def _extra(self, needed: set[int]) -> int:
        return max(len(needed) - STATE_PAGES_EACH, 0)

    def _is_kept(self, sequence: SequenceState, index: int) -> bool:
        return index == _next_on_grid(index) or index == self._last_of_prompt(sequence)

    def _last_of_prompt(self, sequence: SequenceState) -> int:
        """The last page of its prompt whose state an equal prompt could reuse; -1: there is none."""
        return (sequence.prompt_tokens - 1) // self._page_tokens - 1

    def _copy(self, sequence: SequenceState, index: int, step: Step) -> None:
        """Replaces a shared page by a copy."""
        shared = sequence.states[index]
        [sequence.states[index]] = self.pool.allocate(1)
        self.pool.release([shared])
        step.copied_state_pages.append((shared, sequence.states[index]))


def _next_on_grid(index: int) -> int:
    """The first page from `index` on that every text caches."""
    return index - index % KEPT_EVERY + KEPT_EVERY - 1
