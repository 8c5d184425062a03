"""Whether a waiting sequence's memory fits beside that of the running ones: integers in, yes or no out.

The expected peak must fit (forecast.py), and each sequence must be able to end beside those with a context window,
which are never preempted: the pages of their windows are reserved. Knows neither slots, queues nor which page is whose.
"""

from collections.abc import Sequence
from typing import Final

from app.engine.scheduling.forecast import OutputForecast, peak_pages
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.sequence import SequenceState

_LEFT_SHARE: Final = 4
"""Several endless outputs leave one of so many pages to others."""


class Admission:
    """Learns from the sequences that end how long outputs are, and keeps count of the reserved pages."""

    def __init__(self, limits: SchedulerLimits, expected_output_tokens: int) -> None:
        """expected_output_tokens: what it expects of an output until some have ended."""
        self._limits = limits
        self._forecast = OutputForecast(expected_output_tokens)
        self._reserved_pages = 0  # by running sequences with a window

    def admitted(self, sequence: SequenceState) -> None:
        """The sequence runs now."""
        if sequence.window is not None:
            self._reserved_pages += self._most_pages(sequence)

    def ended(self, sequence: SequenceState) -> None:
        """The sequence has run, and has ended or was aborted. Not for one that was preempted."""
        if sequence.window is not None:
            self._reserved_pages -= self._most_pages(sequence)
        if sequence.max_new_tokens:  # of a prompt alone, such as an embedding's, there is nothing to learn
            self._forecast.record(sequence.generated)

    def can_reserve(self, candidate: SequenceState, running: Sequence[SequenceState]) -> bool:
        """Whether each sequence could end beside those that are never preempted, and these leave pages to others."""
        reserved = self._reserved_pages + self._most_pages(candidate)
        if candidate.window is not None:
            others = (self._most_pages(sequence) for sequence in running if sequence.window is None)
            left = self._limits.page_count // _LEFT_SHARE if self._reserved_pages else 0
            reserved += max(left, *others, 0)
        is_reserved = self._reserved_pages > 0 or candidate.window is not None
        return not is_reserved or reserved <= self._limits.page_count or not running

    def fits(self, candidate: SequenceState, running: Sequence[SequenceState], repeated_pages: int) -> bool:
        """Whether the expected peak fits. Call `can_reserve` too.

        repeated_pages: how many pages fewer there are than their holders count, as they are shared.
        """
        # Those of windows are not shared for long. They are no more, by group, than those that stay.
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
        # The tokens of a step are held beside their windows, until it is over.
        chunk = self._limits.pages_for(self._limits.step_tokens)
        return pages + chunk * sum(window > 0 for window in groups.windows)
