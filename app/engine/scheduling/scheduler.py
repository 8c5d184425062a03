"""Which tokens the next step computes, and for which sequences: integers in, integers out.

There is no prefill phase and no decode phase. A sequence has a length (its known tokens) and a count of computed tokens
(those whose keys and values are in its pages). The tokens in between are computed next: the last token of a running
output, or a chunk of a prompt.

- Admission: candidates.py says which waiting sequence begins.
- Budget: token_budget.py splits a step's tokens among the running ones.
- Sharing: a page in the prefix cache is not computed again. It is looked up when a prompt reaches it, not only on
  arrival: if several prompts begin alike, one computes the pages and the others wait for them. At least one token is
  always computed, for its logits. A page can be found once the step that filled it has succeeded.
- Page groups: layers that see only a window of the text have pages of their own. A sequence gives those back as soon as
  no later token sees them, and gets from the prefix cache those that its next token sees (pages/page_groups.py).
- States: layers with a recurrent state keep it in pages of another pool, which never runs out (sequence_states.py). A
  prompt goes on behind cached pages only where the state behind them is cached.
- Loading: a `PageLoader` may load pages that the prefix cache lacks. Their sequence is not scheduled meanwhile, and
  computes the pages that were not loaded.
- Endless outputs: the oldest pages of a full context window leave it (context_shift.py). Such a sequence is never
  preempted: its window is reserved, and another sequence is admitted only if it could end beside it.
- Searches: the branches of a group share their pages. A branch that must write to a shared page gets a copy first. A
  branch whose tokens are all computed waits until `fork` makes the next branches. A group is admitted with all of its
  slots and preempted as a whole; then the tokens that its branches have in common are computed once.
- Batches: sequences that nobody waits for stand still while another one waits or runs: they keep slots and pages, and
  are neither computed nor admitted. Another one takes what it needs of both, as if they were not there, the youngest
  batch sequence first. They are behind the others in the list of the running ones.
- Preemption: when an older sequence needs a page and none is free, the youngest frees all of its pages, goes to the
  front of the queue, and is computed again, prompt and output together. A sequence without a younger one skips the step
  instead. A preempted one is not admitted until a sequence has ended; otherwise sequences would preempt each other in
  turn. The oldest sequence is never preempted and fits alone, so every sequence ends.

Knows nothing of token ids, samplers, arrays or streams: it knows the contents of a page by digest only.
"""

from collections.abc import Callable, Sequence

from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import OnPageEvicted, PagePool
from app.engine.scheduling.candidates import Candidates
from app.engine.scheduling.context_shift import lacking_pages, shift
from app.engine.scheduling.limits import PageWindow, SchedulerLimits
from app.engine.scheduling.page_loader import PageLoader
from app.engine.scheduling.priorities import PriorityQueue, beside, without_batches
from app.engine.scheduling.sequence import SequenceGroup, SequenceState, Step
from app.engine.scheduling.sequence_pages import SequencePages, entries
from app.engine.scheduling.sequence_states import SequenceStates
from app.engine.scheduling.token_budget import split_budget


class Scheduler:
    """Keeps the waiting sequences and, in the order in which they began, the running ones, batches' last."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        expected_output_tokens: int = 256,
        most_of_caller: int | None = None,
        on_page_evicted: OnPageEvicted | None = None,
    ) -> None:
        """Starts without sequences, all pages free.

        expected_output_tokens: output length that admission expects until some have ended.
        most_of_caller: the most slots of one caller; None: all.
        on_page_evicted: the page pool's listener.
        """
        self.limits = limits
        self.pool = PagePool(limits.page_count, on_page_evicted)
        self.states = SequenceStates(limits) if limits.state_pages else None
        """None: the model has no recurrent states."""
        self._pages = SequencePages(self.pool, limits, None if self.states is None else self.states.pool)
        self._page_groups = limits.groups.count
        self.waiting = PriorityQueue()
        self.running: list[SequenceState] = []
        self.preemptions = 0
        """Without those of batches, which are meant to give way."""
        self.loader: PageLoader | None = None
        """Loads pages that the prefix cache lacks; None: they are computed."""
        self.on_leave: Callable[[SequenceState], None] | None = None
        """Called with each sequence that is about to leave its slot: ended, preempted, or a branch that is left out."""
        self._free_slots = list(range(limits.max_sequences - 1, -1, -1))
        self._candidates = Candidates(
            limits,
            self.waiting,
            self._pages,
            self.pool,
            expected_output_tokens=expected_output_tokens,
            most_of_caller=most_of_caller,
        )
        self._new_pages: list[tuple[int, int, int]] = []  # page table entries of branches made since the last step

    @property
    def active(self) -> Sequence[SequenceState]:
        """The running sequences that don't stand still."""
        return without_batches(self.running) if self.waiting.holds_batches else self.running

    def add(self, sequence: SequenceState) -> None:
        """Queues a sequence that `limits.check` accepts."""
        self.waiting.add(sequence, self._pages.uncached(sequence))

    def expected_tokens(self, sequence: SequenceState) -> int:
        """How many further tokens of its output are expected, by how long recent ones were; at least one."""
        return self._candidates.expected_tokens(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Removes a sequence that has ended or was aborted, with its whole group, and frees pages and slots."""
        is_running = sequence.slot >= 0
        if is_running:
            self._stop(sequence)
        self._candidates.ended(sequence, has_run=is_running)

    def fork(self, group: SequenceGroup, children: Sequence[tuple[SequenceState, int]]) -> list[SequenceState]:
        """Replaces the group's members by children, given as (parent, known tokens); returns the new members.

        Each child shares its parent's pages. A parent's first child is the parent's own sequence; further ones are new
        sequences, and the caller sets their chains. Members without a child are removed. Needs no free page.
        """
        begin = self.running.index(group.members[0])
        parents = {parent for parent, _ in children}
        for member in group.members:
            if member not in parents:
                self._release(member, group.spare_slots)
        members: list[SequenceState] = []
        for parent, _ in children:
            if parent in parents:
                parents.remove(parent)
                members.append(parent)
            else:
                members.append(self._branch(parent, group))
        for member, (_, length) in zip(members, children, strict=True):
            member.length = length
        self.running[begin : begin + len(group.members)] = members
        group.members, group.branched = members, True
        return members

    def _branch(self, parent: SequenceState, group: SequenceGroup) -> SequenceState:
        child = SequenceState(
            parent.prompt_tokens,
            parent.max_new_tokens,
            group=group,
            caller=parent.caller,
            is_batch=parent.is_batch,
        )
        child.computed, child.kept_pages, child.restarted = parent.computed, parent.kept_pages, True
        child.slot = group.spare_slots.pop()
        self._new_pages += self._pages.share(child, parent)
        if self.states is not None:
            self.states.share(child, parent)
        return child

    def end_load(self, sequence: SequenceState, pages: Sequence[int], loaded: int) -> None:
        """Ends a load: the sequence gets the first `loaded` of `pages`, the rest is freed, and it is scheduled again.

        pages: allocated from the pool for it, with one page group. The loader's `cancel` does not call this.
        """
        assert sequence.chain is not None
        sequence.loading = False
        self._new_pages += self._pages.add_loaded(sequence, sequence.chain, pages[:loaded])
        self.pool.release(reversed(pages[loaded:]))

    def schedule(
        self, prompt_chunk_tokens: int, alone_tokens: int | None = None, batch_tokens: int | None = None
    ) -> Step:
        """Makes the next step. It is empty only if there is no sequence at all, or pages are being loaded or saved.

        prompt_chunk_tokens: the most prompt tokens of the step, if a sequence decodes in it.
        alone_tokens: the most if none does; None: the step's limit.
        batch_tokens: the most of a step of batches, whether one decodes or not; None: as alone_tokens.
        """
        step = Step()
        if self.waiting and (self._free_slots or self.waiting.holds_batches):
            self._admit(step)
        step.new_pages, self._new_pages = self._new_pages, step.new_pages
        if self.states is not None:
            self.states.begin_step(self.running, step)
        alone = self.limits.step_tokens if alone_tokens is None else alone_tokens
        if not self.waiting.holds_batches:
            prompt_chunk_tokens = alone = alone if batch_tokens is None else min(alone, batch_tokens)
        active = self.active
        for sequence in self.running[len(active) :]:
            sequence.planned = 0
        for sequence in active:
            if sequence.length - sequence.computed > 1 and sequence.chain is not None and not sequence.loading:
                self._find_pages(sequence, sequence.chain, step)
        split_budget(active, self.limits, self.states, prompt_chunk_tokens=prompt_chunk_tokens, alone_tokens=alone)
        planned: list[tuple[SequenceState, int]] = []
        groups, page_tokens = self._page_groups, self.limits.page_tokens
        index = 0
        while index < len(self.running):  # preemption may shorten it
            sequence = self.running[index]
            count = sequence.planned
            if count > 1 and self.states is not None:
                count = self.states.fitting(sequence, count)
            if count and sequence.group is not None and not self._own_last_page(sequence, step):
                count = 0
            if count and (sequence.computed + count) * groups > len(sequence.pages) * page_tokens:
                count = self._claim_pages(sequence, count, step)
            if count:
                planned.append((sequence, count))
                if self.states is not None:
                    self.states.claim(sequence, count, step)
            index += 1
        if self.states is not None:
            for sequence, count in planned:
                if count > 1:
                    self.states.claim_cached(sequence, count, step)
        planned.sort(key=lambda item: item[0].in_prompt)
        for sequence, count in planned:
            step.sequences.append(sequence)
            step.query_lengths.append(count)
            step.samples.append(sequence.computed + count >= sequence.length)
            step.prompts += sequence.in_prompt
        return step

    def complete(self, step: Step) -> None:
        """Records that the step has been computed: its tokens are in the pages, and full pages may be shared."""
        for sequence, count in zip(step.sequences, step.query_lengths, strict=True):
            self.waiting.charge(sequence, count)
            sequence.computed += count
            if count > 1:  # decoding caches full pages when it claims the next page, or ends
                self._pages.settle(sequence)
                if self.states is not None:
                    self.states.settle(sequence)

    def _admit(self, step: Step) -> None:
        """Gives slots to waiting sequences, as long as one fits."""
        while True:
            sequence = self._candidates.next(self.running, len(self._free_slots), has_loader=self.loader is not None)
            if sequence is None:
                return
            self._free_slots_of_batches(sequence.width, step)
            sequence.slot = self._free_slots.pop()
            if sequence.group is not None:
                sequence.group.spare_slots = [self._free_slots.pop() for _ in range(1, sequence.width)]
            self.running.insert(len(beside(sequence, self.running)), sequence)
            step.begun.append(sequence)

    def _free_slots_of_batches(self, slots: int, step: Step) -> None:
        """Preempts the youngest sequences of batches until that many slots are free."""
        while len(self._free_slots) < slots:
            assert self.running[-1].is_batch
            self._preempt(self.running[-1], step)

    def _free_pages_of_batches(self, pages: int, step: Step) -> None:
        """Preempts the youngest sequences of batches until that many pages are free."""
        while self.pool.free_count < pages and self.running[-1].is_batch:
            self._preempt(self.running[-1], step)

    def _find_pages(self, sequence: SequenceState, chain: PageChain, step: Step) -> None:
        """Adds the sequence's next pages that are in the prefix cache, or starts to load them."""
        if self._pages.count(sequence) * self.limits.page_tokens != sequence.computed:
            return
        end = (sequence.length - 1) // self.limits.page_tokens
        if sequence.window is not None:
            end = min(end, sequence.window.pages)
        computed = sequence.computed
        step.new_pages += self._pages.find(sequence, chain, end)
        if self.states is not None and sequence.computed > computed:
            self.states.find(sequence, chain, step)
        if self._pages.count(sequence) < end and sequence.grant is not None and self.loader is not None:
            sequence.loading = self.loader.begin(sequence, end)

    def _claim_pages(self, sequence: SequenceState, count: int, step: Step) -> int:
        """Allocates pages for `count` more tokens of `sequence`; returns how many of the tokens have a page.

        A chunk shrinks to the free pages. Only if there is none at all is the youngest sequence preempted, and batches'
        before the chunk shrinks.
        """
        page_tokens = self.limits.page_tokens
        self._pages.settle(sequence)
        if sequence.window is not None:
            if sequence.computed == sequence.window.pages * page_tokens and not self._shift(
                sequence, sequence.window, step
            ):
                return 0
            count = min(count, sequence.window.pages * page_tokens - sequence.computed)
        pages = self._pages.count(sequence)
        more = self.limits.pages_for(sequence.computed + count) - pages
        if not sequence.is_batch:
            self._free_pages_of_batches(more * self._page_groups, step)
        if sequence.computed == pages * page_tokens:
            self._free_by_preemption(self._page_groups, sequence, step)
        step.new_pages += self._pages.extend(sequence, more)
        return min(count, self._pages.count(sequence) * page_tokens - sequence.computed)

    def _shift(self, sequence: SequenceState, window: PageWindow, step: Step) -> bool:
        """Shifts a full context window; False if no page is free for the copies that this needs."""
        lacking = lacking_pages(sequence, window, self.pool)
        self._free_by_preemption(lacking, sequence, step)
        if self.pool.free_count < lacking:
            return False
        shift(sequence, window, self.pool, self.limits.page_tokens, step)
        return True

    def _own_last_page(self, sequence: SequenceState, step: Step) -> bool:
        """Copies the page that a branch will write to, if others hold it too. Returns False if no page is free."""
        index, filled = divmod(sequence.computed, self.limits.page_tokens)
        if not filled or not self._pages.is_shared(sequence, index):
            return True
        self._free_by_preemption(self._page_groups, sequence, step)
        if self.pool.free_count < self._page_groups:
            return False
        step.copied_pages += self._pages.copy_of_last(sequence, index)
        step.new_pages += entries(sequence, index * self._page_groups)
        return True

    def _free_by_preemption(self, pages: int, claimant: SequenceState, step: Step) -> None:
        """Preempts sequences younger than the claimant, the youngest first, until `pages` pages are free."""
        index = len(self.running) - 1
        while self.pool.free_count < pages:
            sequence = self.running[index]
            if sequence is claimant or (sequence.group is not None and sequence.group is claimant.group):
                return
            index -= 1 if sequence.group is None else len(sequence.group.members)
            if sequence.window is None:
                self._preempt(sequence, step)

    def _preempt(self, sequence: SequenceState, step: Step) -> None:
        """Frees all pages of the sequence and its group, and queues it again."""
        if sequence.computed and not sequence.is_batch:
            self.preemptions += 1
        self._stop(sequence)
        group = sequence.group
        if group is not None and group.branched:
            step.preempted_groups.append(group)
            sequence = SequenceState(
                sequence.prompt_tokens,
                sequence.max_new_tokens,
                group=group,
                caller=sequence.caller,
                is_batch=sequence.is_batch,
                restarted=True,
            )
            group.members, group.branched = [sequence], False
        self._candidates.preempted(sequence)

    def _stop(self, sequence: SequenceState) -> None:
        """Removes the sequence and its group from the running ones, and frees pages and slots."""
        group = sequence.group
        for member in [sequence] if group is None else group.members:
            self.running.remove(member)
            self._release(member, self._free_slots)
        if group is not None:
            self._free_slots += group.spare_slots
            group.spare_slots = []

    def _release(self, sequence: SequenceState, slots: list[int]) -> None:
        if sequence.loading:
            assert self.loader is not None
            self.loader.cancel(sequence)
        if self.on_leave is not None:
            self.on_leave(sequence)
        sequence.loading = sequence.asked_loader = False
        if self.states is not None:
            self.states.release(sequence)
        self._pages.release(sequence)
        sequence.restarted = True
        slots.append(sequence.slot)
        sequence.slot = -1
