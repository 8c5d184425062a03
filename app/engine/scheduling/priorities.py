"""Orders the waiting sequences of both priorities: batches' come when no other sequence is in the engine.

Each priority has a fair queue of its own, so that what batches have computed changes neither the turns nor the ageing
of the others. Knows what FairQueue knows, and which sequences are of batches.
"""

from collections.abc import Iterator, Sequence

from app.engine.pages.page_groups import NONE
from app.engine.scheduling.fair_queue import FairQueue
from app.engine.scheduling.sequence import SequenceState


class PriorityQueue:
    """The waiting sequences; its methods are those of FairQueue."""

    def __init__(self) -> None:
        self._normal, self._batch = FairQueue(), FairQueue()

    def __len__(self) -> int:
        return len(self._normal) + len(self._batch)

    def __iter__(self) -> Iterator[SequenceState]:
        yield from self._normal
        yield from self._batch

    @property
    def batch_count(self) -> int:
        """How many of the waiting sequences are of batches."""
        return len(self._batch)

    @property
    def holds_batches(self) -> bool:
        """Whether batches stand still, because a sequence that somebody waits for waits or runs."""
        return self._normal.has_sequences

    def add(self, sequence: SequenceState, tokens: int) -> None:
        self._of(sequence).add(sequence, tokens)

    def add_preempted(self, sequence: SequenceState) -> None:
        self._of(sequence).add_preempted(sequence)

    def firsts(self) -> Iterator[SequenceState]:
        """Yields those of which one may begin next, as FairQueue does: none of a batch while batches stand still."""
        return (self._normal if self.holds_batches else self._batch).firsts()

    def is_before(self, sequence: SequenceState, other: SequenceState) -> bool:
        """Whether `sequence` has the lower rank; for two of one priority."""
        return self._of(sequence).is_before(sequence, other)

    def started(self, sequence: SequenceState) -> None:
        self._of(sequence).started(sequence)

    def ended(self, sequence: SequenceState) -> None:
        self._of(sequence).ended(sequence)

    def charge(self, sequence: SequenceState, tokens: int) -> None:
        self._of(sequence).charge(sequence, tokens)

    def _of(self, sequence: SequenceState) -> FairQueue:
        return self._batch if sequence.is_batch else self._normal


def without_batches(running: list[SequenceState]) -> list[SequenceState]:
    """Leaves out the sequences of batches, which are the last ones."""
    index = len(running)
    while index and running[index - 1].is_batch:
        index -= 1
    return running[:index]


def beside(sequence: SequenceState, running: list[SequenceState]) -> list[SequenceState]:
    """The running sequences that don't give way to this one."""
    return running if sequence.is_batch else without_batches(running)


def slots_of(sequence: SequenceState) -> int:
    """The slots that a running sequence holds; a search's first branch holds the spare ones too."""
    group = sequence.group
    return 1 if group is None or sequence is not group.members[0] else 1 + len(group.spare_slots)


def repeated_pages(sequences: Sequence[SequenceState]) -> int:
    """How many pages of these sequences sharing saves."""
    pages = [page for sequence in sequences for page in sequence.pages if page != NONE]
    return len(pages) - len(set(pages))
