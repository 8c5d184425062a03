"""Which tokens the next step computes, and for which sequences: integers in, integers out.

There is no prefill phase and no decode phase. A sequence has a length (tokens known) and a count of those whose keys
and values are in its pages; what lies between is computed next, one token of a running output or a chunk of a prompt.

- Budget: a step computes at most `step_tokens`. Sequences with one token to compute (decoding) come first; prompts get
  the rest, but at most `prompt_chunk_tokens` of it while somebody decodes, which bounds the time between two tokens
  (pace.py).
- Fairness: half of what prompts get goes to the oldest of them, so that it surely ends; the rest to those with least
  left, so that a short prompt overtakes a long one.
- Admission: in order of arrival, when a slot is free and the expected peak of memory fits (forecast.py).
- Sharing: a page that is in the prefix cache is not computed again. It is looked up when a prompt comes to it, not only
  on arrival: of several prompts that begin alike one computes the pages, and the others wait for them. At least one
  token is always computed, for its logits. A page is known to others once the step that filled it has succeeded.
- Endless outputs: when a sequence with a window has filled it, whole pages of its oldest tokens leave its page table,
  but not the first ones, whose keys are turned to where they now stand (kernels/kv_turn.h). It can't be computed again,
  so it is never preempted: its window is reserved, and others are admitted only where they could end beside it.
- Searches: the branches of a group share their pages; one that is to write to a page that others hold too gets a copy
  first. A branch that has computed all of its tokens waits for the others (whoever makes branches, by `fork`). A group
  is admitted with all of its slots, and preempted as a whole; then what its branches have in common is computed once.
- Preemption: when an older sequence needs a page and none is free, the youngest gives all of its pages back, waits in
  front of all others and is computed again, prompt and output as one prompt. A sequence without anybody younger just
  skips a step. What all of them hold is then already more than there is, so admission lets nobody in until one has
  ended: requests don't chase each other out.
  The oldest is never preempted, and fits alone, so every sequence ends.

Knows nothing of token ids, samplers, arrays or streams: what a page holds is a digest to it.
"""

from collections import deque
from collections.abc import Sequence

from app.engine.pages.page_names import PageChain
from app.engine.pages.page_pool import OnPageForgotten, PagePool
from app.engine.scheduling.forecast import OutputForecast, peak_pages
from app.engine.scheduling.limits import PageWindow, SchedulerLimits
from app.engine.scheduling.sequence import SequenceGroup, SequenceState, Step


class Scheduler:
    """Keeps the waiting and the running sequences, both in order of arrival, all running ones before all waiting."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        expected_output_tokens: int = 256,
        on_page_forgotten: OnPageForgotten | None = None,
    ) -> None:
        """Starts without sequences, all pages free.

        expected_output_tokens: what admission expects of an output until some have ended.
        on_page_forgotten: the page pool's listener.
        """
        self.limits = limits
        self.pool = PagePool(limits.page_count, on_page_forgotten)
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.preemptions = 0
        self._free_slots = list(range(limits.max_sequences - 1, -1, -1))
        self._forecast = OutputForecast(expected_output_tokens)
        self._admission_open = True
        self._reserved_pages = 0  # by running sequences with a window
        self._new_pages: list[tuple[int, int, int]] = []  # of branches since the last step

    def add(self, sequence: SequenceState) -> None:
        """Queues a sequence that `limits.check` accepts."""
        self.waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Takes out a sequence that has ended or was aborted, wherever it is; its pages and slot are free at once.

        With it all of its group.
        """
        if sequence.slot >= 0:
            self._stop(sequence)
            if sequence.window is not None:
                self._reserved_pages -= self._most_pages(sequence)
            self._forecast.record(sequence.generated)
        else:
            self.waiting.remove(sequence)
        self._admission_open = True

    def fork(self, group: SequenceGroup, children: Sequence[tuple[SequenceState, int]]) -> list[SequenceState]:
        """Makes (parent, length) the group's members: each has its parent's pages and so many known tokens.

        A parent's first child is the parent itself, gone on; others need a chain of their own. Members without a child
        are gone. Never needs a page.
        """
        begin = self.running.index(group.members[0])
        parents = {parent for parent, _ in children}
        for member in group.members:
            if member not in parents:
                self._give_back(member, group.spare_slots)
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
        child = SequenceState(parent.prompt_tokens, parent.max_new_tokens, group=group)
        child.computed, child.kept_pages, child.restarted = parent.computed, parent.kept_pages, True
        child.slot = group.spare_slots.pop()
        child.pages = list(parent.pages)
        self.pool.share(child.pages)
        self._new_pages += [(child.slot, index, page) for index, page in enumerate(child.pages)]
        return child

    def schedule(self, prompt_chunk_tokens: int) -> Step:
        """Makes the next step; empty only if there is no sequence at all.

        prompt_chunk_tokens: the most prompt tokens of the step, if a sequence decodes in it.
        """
        if self.waiting:
            self._admit()
        step = Step()
        step.new_pages, self._new_pages = self._new_pages, step.new_pages
        self._plan(step, prompt_chunk_tokens)
        planned: list[tuple[SequenceState, int]] = []
        index = 0
        while index < len(self.running):  # it may lose its tail to preemption meanwhile
            sequence = self.running[index]
            count = sequence.planned
            if count and sequence.group is not None and not self._own_last_page(sequence, step):
                count = 0
            if count and sequence.computed + count > len(sequence.pages) * self.limits.page_tokens:
                count = self._claim_pages(sequence, count, step)
            if count:
                planned.append((sequence, count))
            index += 1
        planned.sort(key=lambda item: item[0].in_prompt)
        for sequence, count in planned:
            step.sequences.append(sequence)
            step.query_lengths.append(count)
            step.samples.append(sequence.computed + count >= sequence.length)
            step.prompts += sequence.in_prompt
        return step

    def complete(self, step: Step) -> None:
        """The step was run: its tokens are in the pages, and full pages may be shared."""
        for sequence, count in zip(step.sequences, step.query_lengths, strict=True):
            sequence.computed += count
            if count > 1:  # pages that outputs fill are kept when the next page is claimed, or at the end
                self._keep_pages(sequence)

    def _admit(self) -> None:
        """Gives slots to waiting sequences, in order, as long as the expected peak of memory fits."""
        while self.waiting and self._admission_open:
            sequence = self.waiting[0]
            if len(self._free_slots) < (1 if sequence.group is None else sequence.group.width):
                return
            if self.running and not self._fits(sequence):
                self._admission_open = False
                return
            self.waiting.popleft()
            if sequence.window is not None:
                self._reserved_pages += self._most_pages(sequence)
            sequence.slot = self._free_slots.pop()
            if sequence.group is not None:
                sequence.group.spare_slots = [self._free_slots.pop() for _ in range(1, sequence.group.width)]
            self.running.append(sequence)

    def _fits(self, candidate: SequenceState) -> bool:
        """Whether all will fit, as far as one can tell, and each could end beside those that are never preempted."""
        reserved = self._reserved_pages + self._most_pages(candidate)
        if candidate.window is not None:
            others = (self._most_pages(sequence) for sequence in self.running if sequence.window is None)
            reserved += max(others, default=0)
        if (self._reserved_pages or candidate.window is not None) and reserved > self.pool.page_count:
            return False
        return self._expected_peak_pages(candidate) <= self.pool.page_count

    def _most_pages(self, sequence: SequenceState) -> int:
        if sequence.window is not None:
            return sequence.window.pages + sequence.window.keep
        width = None if sequence.group is None else sequence.group.width
        return self.limits.most_pages(sequence.prompt_tokens, sequence.max_new_tokens, width)

    def _expected_peak_pages(self, candidate: SequenceState) -> int:
        expected = []
        for sequence in (*self.running, candidate):
            most = sequence.end_length - 1
            if sequence.window is not None:
                most = max(sequence.length, sequence.window.pages * self.limits.page_tokens)
            remaining = min(self._forecast.remaining(sequence.generated), max(most - sequence.length, 0))
            expected.append((sequence.length, remaining))
            if sequence.group is not None and not sequence.group.branched:
                own = (sequence.length % self.limits.page_tokens, remaining)
                expected += [own] * (sequence.group.width - 1)
        return peak_pages(expected, self.limits.page_tokens) - self.pool.repeat_count

    def _plan(self, step: Step, prompt_chunk_tokens: int) -> None:
        """Splits the token budget: sets `planned` of every running sequence. Shared pages go to their readers."""
        prompts = []
        for sequence in self.running:
            if sequence.length - sequence.computed > 1 and sequence.chain is not None:
                self._find_pages(sequence, sequence.chain, step)
            left = sequence.length - sequence.computed
            if left <= 1:  # 0: a branch that waits for the others of its group
                sequence.planned = left + sequence.drafts
            else:
                sequence.planned = 0
                prompts.append(sequence)
        if not prompts:
            self._trim_drafts()
            return
        for sequence in self.running:
            sequence.planned = min(sequence.planned, 1)
        decoding = len(self.running) - len(prompts)
        budget = self.limits.step_tokens - decoding
        if decoding:
            budget = min(budget, prompt_chunk_tokens)
        oldest = prompts[0]
        oldest.planned = min(oldest.left, (budget + 1) // 2)
        budget -= oldest.planned
        for sequence in sorted(self._leaders(prompts), key=lambda prompt: prompt.left - prompt.planned):
            more = min(sequence.left - sequence.planned, budget)
            sequence.planned += more
            budget -= more

    def _trim_drafts(self) -> None:
        """Guesses were made for those who ran before; a prompt that the cache had whole is one more to decode."""
        excess = sum(sequence.planned for sequence in self.running) - self.limits.step_tokens
        for sequence in reversed(self.running):
            if excess <= 0:
                return
            less = min(excess, sequence.planned - 1, sequence.drafts)
            if less > 0:
                sequence.planned -= less
                excess -= less

    def _find_pages(self, sequence: SequenceState, chain: PageChain, step: Step) -> None:
        """Gives the sequence those of its next pages that are in the prefix cache."""
        page_tokens = self.limits.page_tokens
        pages = sequence.pages
        found = 0
        if len(pages) * page_tokens == sequence.computed:
            while len(pages) < (sequence.length - 1) // page_tokens:
                page = self.pool.find(chain.digest(len(pages)))
                if page is None:
                    break
                step.new_pages.append((sequence.slot, len(pages), page))
                pages.append(page)
                found += 1
        if found:
            sequence.computed += found * page_tokens
            sequence.kept_pages = len(pages)
            if not sequence.restarted:
                sequence.cached_tokens += found * page_tokens

    def _keep_pages(self, sequence: SequenceState) -> None:
        """Offers the full pages of the sequence to the prefix cache."""
        full = min(sequence.computed, sequence.length) // self.limits.page_tokens
        if sequence.kept_pages < full and sequence.chain is not None:
            for index in range(sequence.kept_pages, full):
                self.pool.keep(sequence.pages[index], sequence.chain.digest(index))
            sequence.kept_pages = full

    def _leaders(self, prompts: list[SequenceState]) -> list[SequenceState]:
        """The prompts without those that had better wait for a page that another one is computing.

        The oldest never waits, nor does one that is inside a page: it must end it.
        """
        page_tokens = self.limits.page_tokens
        leaders: list[SequenceState] = []
        coming: set[bytes] = set()
        followers = []
        for sequence in prompts:
            index = sequence.computed // page_tokens
            if sequence.chain is None or index >= (sequence.length - 1) // page_tokens:
                leaders.append(sequence)
            elif sequence.computed % page_tokens or sequence is prompts[0]:
                leaders.append(sequence)
                coming.add(sequence.chain.digest(index))
            else:
                followers.append((sequence, sequence.chain.digest(index)))
        followers.sort(key=lambda pair: pair[0].length - pair[0].computed)  # the first to end leads
        for sequence, digest in followers:
            if digest not in coming:
                coming.add(digest)
                leaders.append(sequence)
        return leaders

    def _claim_pages(self, sequence: SequenceState, count: int, step: Step) -> int:
        """Gets pages for `count` more tokens of `sequence`; returns for how many there is place.

        A chunk shrinks to the place there is; only if there is none at all does the youngest lose its own.
        """
        page_tokens = self.limits.page_tokens
        self._keep_pages(sequence)
        if sequence.window is not None:
            if sequence.computed == sequence.window.pages * page_tokens and not self._shift(
                sequence, sequence.window, step
            ):
                return 0
            count = min(count, sequence.window.pages * page_tokens - sequence.computed)
        needed = self.limits.pages_for(sequence.computed + count) - len(sequence.pages)
        if sequence.computed == len(sequence.pages) * page_tokens:
            self._free_by_preemption(1, sequence, step)
        first = len(sequence.pages)
        sequence.pages += self.pool.take(min(needed, self.pool.free_count))
        for index in range(first, len(sequence.pages)):
            step.new_pages.append((sequence.slot, index, sequence.pages[index]))
        return min(count, len(sequence.pages) * self.limits.page_tokens - sequence.computed)

    def _shift(self, sequence: SequenceState, window: PageWindow, step: Step) -> bool:
        """Takes the oldest pages after the first ones out of a full window; False if there is no place for copies."""
        discarded = sequence.pages[window.keep : window.keep + window.discard]
        if not sequence.sinks and window.keep:
            own = sum(self.pool.holders(page) == 1 for page in discarded)
            self._free_by_preemption(window.keep - own, sequence, step)
            if self.pool.free_count + own < window.keep:
                return False
        self.pool.release(reversed(discarded))
        if not sequence.sinks and window.keep:
            sequence.sinks = sequence.pages[: window.keep]
            sequence.pages[: window.keep] = self.pool.take(window.keep)
        del sequence.pages[window.keep : window.keep + window.discard]
        begin, tokens = window.keep * self.limits.page_tokens, window.discard * self.limits.page_tokens
        sequence.chain = None  # what follows depends on what was dropped
        sequence.computed -= tokens
        sequence.length -= tokens
        sequence.end_length -= tokens
        sequence.dropped += tokens
        step.dropped.append((sequence, begin, begin + tokens))
        step.new_pages += [(sequence.slot, index, page) for index, page in enumerate(sequence.pages)]
        step.turned_pages += [
            (source, target, sequence.dropped)
            for source, target in zip(sequence.sinks, sequence.pages[: window.keep], strict=True)
        ]
        return True

    def _own_last_page(self, sequence: SequenceState, step: Step) -> bool:
        """Makes the page that a branch goes on in its own, by a copy if others hold it; False if there is no place."""
        index, filled = divmod(sequence.computed, self.limits.page_tokens)
        if not filled or self.pool.holders(sequence.pages[index]) == 1:
            return True
        self._free_by_preemption(1, sequence, step)
        if not self.pool.free_count:
            return False
        shared = sequence.pages[index]
        [own] = self.pool.take(1)
        self.pool.release([shared])
        sequence.pages[index] = own
        step.copied_pages.append((shared, own))
        step.new_pages.append((sequence.slot, index, own))
        return True

    def _free_by_preemption(self, pages: int, claimant: SequenceState, step: Step) -> None:
        """Takes pages from those who came after the claimant, the youngest first, until so many are free."""
        index = len(self.running) - 1
        while self.pool.free_count < pages:
            sequence = self.running[index]
            if sequence is claimant or (sequence.group is not None and sequence.group is claimant.group):
                return
            index -= 1 if sequence.group is None else len(sequence.group.members)
            if sequence.window is None:
                self._preempt(sequence, step)

    def _preempt(self, sequence: SequenceState, step: Step) -> None:
        """Of a group, all of it."""
        if sequence.computed:
            self.preemptions += 1
        self._stop(sequence)
        group = sequence.group
        if group is not None and group.branched:
            step.preempted_groups.append(group)
            sequence = SequenceState(sequence.prompt_tokens, sequence.max_new_tokens, group=group, restarted=True)
            group.members, group.branched = [sequence], False
        self.waiting.appendleft(sequence)

    def _stop(self, sequence: SequenceState) -> None:
        """It, or all of its group, runs no more: pages and slots are free; of cached ones ends are forgotten first."""
        group = sequence.group
        for member in [sequence] if group is None else group.members:
            self.running.remove(member)
            self._give_back(member, self._free_slots)
        if group is not None:
            self._free_slots += group.spare_slots
            group.spare_slots = []

    def _give_back(self, sequence: SequenceState, slots: list[int]) -> None:
        self._keep_pages(sequence)
        self.pool.release(reversed(sequence.pages))
        self.pool.release(reversed(sequence.sinks))
        sequence.pages = []
        sequence.sinks = []
        sequence.computed = sequence.kept_pages = 0
        sequence.restarted = True
        slots.append(sequence.slot)
        sequence.slot = -1
