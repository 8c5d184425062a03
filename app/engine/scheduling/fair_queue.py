"""Orders the waiting sequences: fair shares between callers, and shortest first within a caller.

- Between callers: fair queueing by virtual time (Sheng et al. 2024, "Fairness in Serving Large Language Models"). The
caller with the fewest computed tokens is next. A new caller starts at the virtual time of one that always had an equal
share, so it neither has saved up a claim nor waits behind all later ones. - Within a caller: the sequence with the
fewest tokens to compute, so that a question does not wait for documents sent at once. A sequence's rank is its tokens
plus a share of all tokens computed before it came. So a long sequence is overtaken only by those that come while AGEING
times its own tokens are computed, and can't starve. - Preempted sequences, whose answers have begun, come before all
others.

Knows integers and callers' names only: neither pages, slots nor which sequence fits.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import Final

from app.engine.scheduling.sequence import SequenceGroup, SequenceState

AGEING: Final = 64
OUTPUT_WEIGHT: Final = 2
"""An output token counts as this many prompt tokens, because it takes more time."""
_MOST_NAMES: Final = 4096

_Rank = tuple[float, int]


class FairQueue:
    """The waiting sequences, and the service that each caller has had."""

    def __init__(self) -> None:
        self._preempted: deque[SequenceState] = deque()
        self._ranks: dict[SequenceState | SequenceGroup, _Rank] = {}  # of waiting and running sequences
        self._waiting: dict[bytes, list[tuple[_Rank, SequenceState]]] = {}  # by caller, in order of rank
        self._served: dict[bytes, float] = {}
        self._virtual_time = 0.0
        self._sequences: dict[bytes, int] = {}  # number of waiting and running sequences, by caller
        self._arrivals = 0
        self._computed_tokens = 0

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[SequenceState]:
        """Yields all waiting sequences, roughly in the order in which they will begin."""
        yield from self._preempted
        callers = sorted(self._waiting, key=self._turn)
        longest = max(map(len, self._waiting.values()), default=0)
        for place in range(longest):
            for caller in callers:
                if place < len(self._waiting[caller]):
                    yield self._waiting[caller][place][1]

    @property
    def has_sequences(self) -> bool:
        """Whether a sequence waits, or has begun and not ended."""
        return bool(self._sequences)

    def add(self, sequence: SequenceState, tokens: int) -> None:
        """Queues a new sequence. tokens: how many must be computed before its first output token."""
        caller = sequence.caller
        if caller not in self._sequences:
            self._lift(caller)
        self._sequences[caller] = self._sequences.get(caller, 0) + 1
        rank = (tokens + self._computed_tokens / AGEING, self._arrivals)
        self._arrivals += 1
        self._ranks[_whole(sequence)] = rank
        insort(self._waiting.setdefault(caller, []), (rank, sequence))

    def add_preempted(self, sequence: SequenceState) -> None:
        """Queues a preempted sequence, or the root of a preempted search, ahead of all others."""
        self._preempted.appendleft(sequence)

    def firsts(self) -> Iterator[SequenceState]:
        """Yields the next preempted sequence and then each caller's next, in the callers' order.

        All stay queued until `started`.
        """
        if self._preempted:
            yield self._preempted[0]
        if len(self._waiting) == 1:
            yield from (waiting[0][1] for waiting in self._waiting.values())
            return
        for caller in sorted(self._waiting, key=self._turn):
            yield self._waiting[caller][0][1]

    def is_before(self, sequence: SequenceState, other: SequenceState) -> bool:
        """Whether `sequence` has the lower rank, through fewer tokens or a longer wait."""
        return self._ranks[_whole(sequence)] < self._ranks[_whole(other)]

    def started(self, sequence: SequenceState) -> None:
        """Removes the sequence from the queue, because it runs now."""
        if self._preempted and self._preempted[0] is sequence:
            self._preempted.popleft()
        else:
            self._take_out(sequence, self._ranks[_whole(sequence)])

    def ended(self, sequence: SequenceState) -> None:
        """Removes an ended or aborted sequence, waiting or running; for a search, pass any branch."""
        rank = self._ranks.pop(_whole(sequence))
        waiting = self._waiting.get(sequence.caller, [])
        place = bisect_left(waiting, rank, key=lambda entry: entry[0])
        if sequence in self._preempted:
            self._preempted.remove(sequence)
        elif place < len(waiting) and waiting[place][1] is sequence:
            self._take_out(sequence, rank)
        self._sequences[sequence.caller] -= 1
        if not self._sequences[sequence.caller]:
            del self._sequences[sequence.caller]
        if not self._sequences:
            self._served.clear()
            self._virtual_time = 0.0

    def charge(self, sequence: SequenceState, tokens: int) -> None:
        """Charges the sequence's caller for `tokens` computed tokens."""
        self._computed_tokens += tokens
        weighted = tokens if sequence.in_prompt else tokens * OUTPUT_WEIGHT
        self._served[sequence.caller] += weighted
        self._virtual_time += weighted / len(self._sequences)

    def _take_out(self, sequence: SequenceState, rank: _Rank) -> None:
        waiting = self._waiting[sequence.caller]
        del waiting[bisect_left(waiting, rank, key=lambda entry: entry[0])]
        if not waiting:
            del self._waiting[sequence.caller]

    def _turn(self, caller: bytes) -> tuple[float, _Rank]:
        return self._served[caller], self._waiting[caller][0][0]

    def _lift(self, caller: bytes) -> None:
        """Sets the virtual time at which a caller without sequences starts."""
        if len(self._served) >= _MOST_NAMES:
            self._served = {name: self._served[name] for name in self._sequences}
        self._served[caller] = max(self._served.get(caller, 0.0), self._virtual_time)


def _whole(sequence: SequenceState) -> SequenceState | SequenceGroup:
    return sequence if sequence.group is None else sequence.group
