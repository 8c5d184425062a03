"""How long a step takes by its number of rows, learned from steps as they run.

The time is not linear in the rows: while a kernel waits for weights, further rows are nearly free; from a few rows on
each costs its multiplications. Where the bend is depends on model and machine. With experts no row is free: each reads
experts that the others did not choose. Knows neither requests nor drafts.
"""

from bisect import bisect_right
from collections.abc import Sequence

from app.engine.expert_reads import ExpertReads


class StepCost:
    """Seconds per step by rows: linear between points, each of which moves towards the measured steps near it."""

    __slots__ = ("_measured", "_prior", "_seconds")

    ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
    """Row counts of the points."""
    PRIOR = tuple(1 + 0.1 * min(rows - 1, 3) + 0.2 * max(rows - 4, 0) for rows in ROWS)
    """The initial time at each point relative to one row, without experts."""
    _RATE = 0.15
    """How far a point moves towards a measurement (0 to 1)."""
    _FORGET = 0.003
    """How far points that were measured and are slower than the prior move back to it in each step, so that a row count
    that once took long is tried again."""

    _LEAST_SHARE, _MOST_SHARE = 0.1, 1.5
    """Bounds of what rows that were never measured cost, relative to the prior."""

    def __init__(self, experts: ExpertReads | None = None) -> None:
        """Starts with the prior, as if one row took a second. experts: None if the model has none."""
        self._prior: Sequence[float] = self.PRIOR
        if experts is not None:
            reads = (experts.relative(rows) for rows in self.ROWS)
            self._prior = [max(pair) for pair in zip(self.PRIOR, reads, strict=True)]
        self._seconds = list(self._prior)
        self._measured: set[int] = set()  # points near which a step was measured

    def seconds(self, rows: int) -> float:
        """The expected time of a step with `rows` rows."""
        return _between(self._seconds, *self._place(rows))

    def record(self, rows: int, seconds: float) -> None:
        """Learns that a step in which all sequences decoded took `seconds`."""
        low, share = self._place(rows)
        prior = _between(self._prior, low, share)
        is_first = not self._measured
        near = {low, low + 1} if share else {low}
        is_new = not near <= self._measured
        self._measured |= near
        if is_first:
            self._seconds = [seconds * value / prior for value in self._prior]
            return
        expected = _between(self._seconds, low, share)
        error = min(seconds, 2 * expected) - expected  # bounded: a stall of the machine says nothing about rows
        forget = self._FORGET * expected / prior
        keep = 1 - self._FORGET
        for point, value in enumerate(self._prior):
            if not low <= point <= low + 1:
                self._seconds[point] = min(self._seconds[point], keep * self._seconds[point] + forget * value)
        scale = (1.0 if is_new else self._RATE) * error / ((1 - share) ** 2 + share**2)
        self._seconds[low] += (1 - share) * scale
        self._seconds[low + 1] += share * scale
        self._extrapolate()

    def _extrapolate(self) -> None:
        """Sets the points where nothing was measured: rows cost as much more, or less, than the prior as measured ones.

        So more rows are tried where the first ones were cheap.
        """
        first, last = min(self._measured), max(self._measured)
        base, prior = self._seconds[first], self._prior[first]
        share = 1.0
        if last > first:
            share = (self._seconds[last] / base - 1) / (self._prior[last] / prior - 1)
            share = min(max(share, self._LEAST_SHARE), self._MOST_SHARE)
        for point, value in enumerate(self._prior):
            if point not in self._measured:
                near = last if point > last else first
                self._seconds[point] = self._seconds[near] + share * base * (value - self._prior[near]) / prior

    def _place(self, rows: int) -> tuple[int, float]:
        """The index of the point at or before `rows`, and the fraction of the way from there to the next point."""
        low = min(bisect_right(self.ROWS, rows), len(self.ROWS) - 1) - 1
        return low, (rows - self.ROWS[low]) / (self.ROWS[low + 1] - self.ROWS[low])


def _between(values: Sequence[float], low: int, share: float) -> float:
    return values[low] + share * (values[low + 1] - values[low])
