"""How much KV memory the running requests will need before they end; admission uses it.

A request may use all of its `max_new_tokens`, but most end long before. Reserving the maximum leaves memory idle;
reserving nothing admits requests that are soon preempted. So an output is expected to be as long as recent outputs
were, given how long it already is. The need is the peak over time, as sequences that end give their pages back (Gong
et al. 2025, "Past-Future Scheduler").

Knows integers only: no requests, no pages.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable


class OutputForecast:
    """Expected output lengths, learned from the last requests that ended."""

    __slots__ = ("_recent", "_sorted", "_suffix_sums")

    def __init__(self, initial_tokens: int, memory: int = 128) -> None:
        """Until requests have ended, outputs are expected to have `initial_tokens`; it uses the last `memory` ones."""
        self._recent = deque([initial_tokens], maxlen=memory)
        self._sorted = [initial_tokens]
        self._suffix_sums: list[int] = []

    def record(self, output_tokens: int) -> None:
        """A request has ended or was aborted after `output_tokens`."""
        if len(self._recent) == self._recent.maxlen:
            self._sorted.remove(self._recent[0])
        self._recent.append(output_tokens)
        insort(self._sorted, output_tokens)
        self._suffix_sums = []

    def remaining(self, generated_tokens: int) -> int:
        """How many more tokens to expect of an output that has `generated_tokens`: at least one.

        The mean of the recent outputs that were longer; an output longer than all of them is expected to double.
        """
        longer_from = bisect_right(self._sorted, generated_tokens)
        longer_count = len(self._sorted) - longer_from
        if longer_count == 0:
            return max(1, generated_tokens)
        if not self._suffix_sums:
            self._sum_suffixes()
        return -(-self._suffix_sums[longer_from] // longer_count) - generated_tokens

    def _sum_suffixes(self) -> None:
        """Sums of the sorted lengths from each index to the end."""
        sums = [0] * len(self._sorted)
        total = 0
        for index in range(len(self._sorted) - 1, -1, -1):
            total += self._sorted[index]
            sums[index] = total
        self._suffix_sums = sums


def peak_pages(sequences: Iterable[tuple[int, int]], page_tokens: int) -> int:
    """The most pages that `sequences`, pairs of (tokens now, tokens to come), will hold at any one time.

    All grow by a token a step and give their pages back when they end, so the peak is just before one of the ends. When
    a sequence with r tokens to come ends, it and all with more have grown by r. To sum their pages in one pass, only
    the number of sequences with each fill of the last page is kept.
    """
    peak = 0
    full_pages = 0
    with_last_fill = [0] * page_tokens
    longest_first = sorted(sequences, key=lambda pair: -pair[1])
    for alive, (tokens, remaining) in enumerate(longest_first, start=1):
        pages, last_fill = divmod(tokens, page_tokens)
        full_pages += pages
        with_last_fill[last_fill] += 1
        # ceil((fill + remaining) / page_tokens) is `more_pages`, or one more from a certain fill on.
        more_pages, rest = divmod(remaining + page_tokens - 1, page_tokens)
        peak = max(peak, full_pages + alive * more_pages + sum(with_last_fill[page_tokens - rest :]))
    return peak
