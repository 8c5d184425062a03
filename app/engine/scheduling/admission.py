"""Decides whether a waiting sequence's KV memory fits beside that of the running ones: integers in, yes or no out.

The expected peak must fit (forecast.py). Sequences with a context window are never preempted, so the pages of their
windows are reserved, and every sequence must be able to end beside them. Knows neither slots, queues nor which page
belongs to whom.
"""

from collections.abc import Sequence

from app.engine.scheduling.forecast import OutputForecast, peak_pages
from app.engine.scheduling.limits import LEFT_SHARE, SchedulerLimits
from app.engine.scheduling.sequence import SequenceState


class Admission:
    """Learns output lengths from the sequences that end, and counts the reserved pages."""

    def __init__(self, limits: SchedulerLimits, expected_output_tokens: int) -> None:
        """`expected_output_tokens`: expected output length until some sequences have ended."""
        self._limits = limits
        self._forecast = OutputForecast(expected_output_tokens)
        self._reserved_pages = 0  # of running sequences with a window

    def admitted(self, sequence: SequenceState) -> None:
        """Reserves the window's pages, because the sequence runs now."""
        if sequence.window is not None:
            self._reserved_pages += self._most_pages(sequence)

    def ended(self, sequence: SequenceState) -> None:
        """Releases the reservation and learns from an ended or aborted sequence. Not for preempted ones."""
        if sequence.window is not None:
            self._reserved_pages -= self._most_pages(sequence)
        if sequence.max_new_tokens:  # a prompt alone, such as for an embedding, teaches nothing
            self._forecast.record(sequence.generated)

    def expected_tokens(self, sequence: SequenceState) -> int:
        """How many further tokens of its output are expected; at least one."""
        return self._forecast.remaining(sequence.generated)

    def can_reserve(self, candidate: SequenceState, running: Sequence[SequenceState]) -> bool:
        """Whether each sequence could end beside those that are never preempted, and these leave pages to others."""
        reserved = self._reserved_pages + self._most_pages(candidate)
        if candidate.window is not None:
            others = (self._most_pages(sequence) for sequence in running if sequence.window is None)
            left = self._limits.page_count // LEFT_SHARE if self._reserved_pages else 0
            reserved += max(left, *others, 0)
        is_reserved = self._reserved_pages > 0 or candidate.window is not None
        return not is_reserved or reserved <= self._limits.page_count or not running

    def fits(self, candidate: SequenceState, running: Sequence[SequenceState], repeated_pages: int) -> bool:
        """Whether the expected peak fits. `can_reserve` must hold too.

        repeated_pages: how many pages sharing saves (`PagePool.repeat_count`).
        """
        # Pages of sliding windows are not shared for long. In each group there are no more of them than of those that
        # stay.
        windows = self._limits.group_windows
        staying = repeated_pages * windows.count(0) // len(windows)
        return self._expected_peak_pages((*running, candidate)) - staying <= self._limits.page_count

    def _most_pages(self, sequence: SequenceState) -> int:
        if sequence.window is not None:
            return sequence.window.pages + sequence.window.keep
        width = None if sequence.group is None else sequence.group.width
        return self._limits.most_pages(sequence.prompt_tokens, sequence.max_new_tokens, width)

    def _expected_peak_pages(self, sequences: Sequence[SequenceState]) -> int:
        page_tokens = self._limits.page_tokens
        expected = []
        for sequence in sequences:
            most = sequence.end_length - 1
            if sequence.window is not None:
                most = max(sequence.length, sequence.window.pages * page_tokens)
            remaining = min(self._forecast.remaining(sequence.generated), max(most - sequence.length, 0))
            expected.append((sequence.length, remaining))
            if sequence.group is not None and not sequence.group.branched:
                own = (sequence.length % page_tokens, remaining)
                expected += [own] * (sequence.group.width - 1)
        groups = self._limits.groups
        pages = peak_pages(
            expected, page_tokens, [groups.most_of(window) if window else None for window in groups.windows]
        )
        # A step's new tokens are held beside the windows until the step is over.
        chunk = self._limits.pages_for(self._limits.step_tokens)
        return pages + chunk * sum(window > 0 for window in groups.windows)
