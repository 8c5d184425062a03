"""Predicts how much KV memory the running requests will need before they end, for admission.

A request may use all of its `max_new_tokens`, but most end long before. Reserving the maximum leaves memory idle;
reserving nothing admits requests that are soon preempted. So an output is expected to be as long as recent outputs
were, given how long it already is. The prediction is the peak over time, because sequences that end free their pages
(Gong et al. 2025, "Past-Future Scheduler").

Knows integers only: no requests, no pages.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush


class OutputForecast:
    """Expected output lengths, learned from the most recently ended requests."""

    __slots__ = ("_recent", "_sorted", "_suffix_sums")

    def __init__(self, initial_tokens: int, memory: int = 128) -> None:
        """`initial_tokens` is the expected length until requests have ended; `memory` is how many recent ones count."""
        self._recent = deque([initial_tokens], maxlen=memory)
        self._sorted = [initial_tokens]
        self._suffix_sums: list[int] = []

    def record(self, output_tokens: int) -> None:
        """Learns that a request has ended or was aborted after `output_tokens`."""
        if len(self._recent) == self._recent.maxlen:
            self._sorted.remove(self._recent[0])
        self._recent.append(output_tokens)
        insort(self._sorted, output_tokens)
        self._suffix_sums = []

    def remaining(self, generated_tokens: int) -> int:
        """Expected number of further tokens of an output that has `generated_tokens`; at least one.

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
        """Computes the sums of the sorted lengths from each index to the end."""
        sums = [0] * len(self._sorted)
        total = 0
        for index in range(len(self._sorted) - 1, -1, -1):
            total += self._sorted[index]
            sums[index] = total
        self._suffix_sums = sums


def peak_pages(sequences: Iterable[tuple[int, int]], page_tokens: int, most: Sequence[int | None] = (None,)) -> int:
    """The peak number of pages that `sequences`, pairs of (tokens now, tokens to come), will hold.

    most: per page group, the most pages that one sequence holds; None: unlimited.

    All grow by one token per step and free their pages when they end, so the peak is just before one of the ends. When
    a sequence with r tokens to come ends, it and all with more have grown by r.
    """
    groups = [
        (_Growing(page_tokens) if limit is None else _Limited(page_tokens, limit), most.count(limit))
        for limit in dict.fromkeys(most)
    ]
    peak = 0
    for tokens, remaining in sorted(sequences, key=lambda pair: -pair[1]):
        pages = 0
        for group, count in groups:
            group.add(tokens)
            pages += count * group.pages(remaining)
        peak = max(peak, pages)
    return peak


class _Growing:
    """Sequences that grow together. Only the number of sequences per fill level of the last page is kept."""

    __slots__ = ("_count", "_full_pages", "_page_tokens", "_with_last_fill")

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._count = self._full_pages = 0
        self._with_last_fill = [0] * page_tokens

    def add(self, tokens: int) -> None:
        pages, last_fill = divmod(tokens, self._page_tokens)
        self._count += 1
        self._full_pages += pages
        self._with_last_fill[last_fill] += 1

    def pages(self, more_tokens: int) -> int:
        """The pages they hold once each has grown by `more_tokens`."""
        # ceil((fill + more_tokens) / page_tokens) is `more_pages`, or one more above a certain fill level.
        more_pages, rest = divmod(more_tokens + self._page_tokens - 1, self._page_tokens)
        return self._full_pages + self._count * more_pages + sum(self._with_last_fill[self._page_tokens - rest :])


class _Limited:
    """Growing sequences with a page limit. `pages` must be called with ever fewer tokens."""

    __slots__ = ("_at_limit", "_below", "_last_tokens", "_limit")

    def __init__(self, page_tokens: int, limit: int) -> None:
        self._limit = limit
        self._last_tokens = (limit - 1) * page_tokens  # the most tokens in fewer pages
        self._below = _Growing(page_tokens)
        self._at_limit: list[tuple[int, int]] = []  # a heap of (-most tokens to come below the limit, tokens)

    def add(self, tokens: int) -> None:
        heappush(self._at_limit, (tokens - self._last_tokens, tokens))

    def pages(self, more_tokens: int) -> int:
        while self._at_limit and -self._at_limit[0][0] >= more_tokens:
            self._below.add(heappop(self._at_limit)[1])
        return len(self._at_limit) * self._limit + self._below.pages(more_tokens)
