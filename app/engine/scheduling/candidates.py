"""Which waiting sequence begins next.

They begin in the order of fair_queue.py, when a slot is free, the expected peak of memory fits (admission.py), and the
prompts that would be computed before it take less than two steps. More of them would only hold slots and pages, which a
short question that comes meanwhile needs. If the next sequence doesn't fit, one of another caller with a lower rank may
overtake it.

Batches give way: beside a sequence that somebody waits for, their slots and pages count as free.

Knows neither which pages a sequence has nor what a step computes.
"""

from collections.abc import Sequence
from typing import Final

from app.engine.pages.page_pool import PagePool
from app.engine.scheduling.admission import Admission
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.priorities import PriorityQueue, beside, repeated_pages, slots_of
from app.engine.scheduling.sequence import SequenceState
from app.engine.scheduling.sequence_pages import SequencePages

_STEPS_AHEAD: Final = 2
_ENDLESS_SHARE: Final = 4
"""Endless outputs leave at least one in this many slots to others."""


class Candidates:
    """Chooses among the waiting sequences, and remembers which don't fit."""

    def __init__(
        self,
        limits: SchedulerLimits,
        waiting: PriorityQueue,
        pages: SequencePages,
        pool: PagePool,
        *,
        expected_output_tokens: int,
        most_of_caller: int | None,
    ) -> None:
        """The arguments are the scheduler's."""
        self._limits = limits
        self._waiting = waiting
        self._pages = pages
        self._pool = pool
        self._normal = Admission(limits, expected_output_tokens)
        self._batch = Admission(limits, expected_output_tokens)
        self._most_of_caller = most_of_caller
        self._unfitting: set[SequenceState] = set()  # that don't fit until some sequence ends

    def next(self, running: list[SequenceState], free_slots: int, *, has_loader: bool) -> SequenceState | None:
        """Returns the first waiting sequence that fits, which runs from now on.

        It overtakes an earlier one only if that one waits for sequences that may never end, or for others of its own
        caller, or if it has the lower rank, which ageing bounds.

        has_loader: whether a `PageLoader` may load pages of those with a grant.
        """
        passed: list[SequenceState] = []
        for sequence in self._waiting.firsts():
            if any(not self._waiting.is_before(sequence, other) for other in passed):
                continue
            others = beside(sequence, running)
            if self._may_wait_for_ever(sequence, others):
                continue
            if self._has_room(sequence, others, running, free_slots, has_loader=has_loader):
                self._waiting.started(sequence)
                self._admission_of(sequence).admitted(sequence)
                return sequence
            passed.append(sequence)
        return None

    def expected_tokens(self, sequence: SequenceState) -> int:
        """How many further tokens of its output are expected, by how long recent ones were; at least one."""
        return self._admission_of(sequence).expected_tokens(sequence)

    def ended(self, sequence: SequenceState, *, has_run: bool) -> None:
        """Learns that a sequence has ended or was aborted: there may be room for others. Not for preempted ones."""
        if has_run:
            self._admission_of(sequence).ended(sequence)
        self._waiting.ended(sequence)
        # The end of a batch's sequence makes no room that others did not have.
        self._unfitting = {other for other in self._unfitting if sequence.is_batch and not other.is_batch}

    def preempted(self, sequence: SequenceState) -> None:
        """Queues a preempted sequence. It is not chosen until a sequence has ended: else they would preempt in turn."""
        self._waiting.add_preempted(sequence)
        self._unfitting.add(sequence)

    def _may_wait_for_ever(self, sequence: SequenceState, others: Sequence[SequenceState]) -> bool:
        """Whether endless outputs block it, or its own caller has so many sequences that others need the rest."""
        endless = sum(other.window is not None for other in others)
        slots = self._limits.max_sequences
        if sequence.window is not None and endless >= slots - slots // _ENDLESS_SHARE:
            return True
        if sequence.width > slots - endless or not self._admission_of(sequence).can_reserve(sequence, others):
            return True
        own = sum(other.caller == sequence.caller for other in others)
        return self._most_of_caller is not None and own + sequence.width > self._most_of_caller

    def _has_room(
        self,
        sequence: SequenceState,
        others: list[SequenceState],
        running: Sequence[SequenceState],
        free_slots: int,
        *,
        has_loader: bool,
    ) -> bool:
        slots, repeated = free_slots, self._pool.repeat_count
        if len(others) < len(running):
            slots = self._limits.max_sequences - sum(map(slots_of, others))
            repeated = repeated_pages(others)
        if sequence in self._unfitting or slots < sequence.width:
            return False
        loads = has_loader and sequence.grant is not None
        if not (sequence.restarted or loads) and self._waits_for_prompts(sequence, others):
            return False
        if others and not self._admission_of(sequence).fits(sequence, others, repeated):
            self._unfitting.add(sequence)
            return False
        return True

    def _waits_for_prompts(self, sequence: SequenceState, others: Sequence[SequenceState]) -> bool:
        """Whether the prompts with no more tokens left than this one take all of the next steps."""
        own, ahead = self._pages.uncached(sequence), 0
        for prompt in others:
            if not prompt.loading and 1 < (left := self._pages.uncached(prompt)) <= own:
                ahead += left
        return ahead >= _STEPS_AHEAD * self._limits.step_tokens

    def _admission_of(self, sequence: SequenceState) -> Admission:
        return self._batch if sequence.is_batch else self._normal
