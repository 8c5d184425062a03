"""How long a step takes by its number of rows, learned from steps as they run.

The time is not linear in the rows: while a kernel waits for weights, further rows are nearly free; from a few rows on
each costs its multiplications. Where the bend is depends on model and machine. With experts no row is free: each reads
experts that the others did not choose.

A busy machine slows all steps alike, and most steps are of few row counts. So one speed is learned from every step, and
how much longer more rows take only from steps of different row counts that follow each other. Knows neither requests
nor drafts.
"""

from bisect import bisect_right
from collections.abc import Sequence

from app.engine.expert_reads import ExpertReads


class StepCost:
    """Seconds per step by rows: a speed, times the time relative to one row, linear between points."""

    __slots__ = ("_last", "_measured", "_prior", "_run", "_shape", "one_row_s")

    ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
    """Row counts of the points."""
    PRIOR = tuple(1 + 0.1 * min(rows - 1, 3) + 0.2 * max(rows - 4, 0) for rows in ROWS)
    """The initial time at each point relative to one row, without experts."""
    _SPEED_RATE = 0.15
    """How far the speed moves towards a measurement (0 to 1)."""
    _SHAPE_RATE = 0.15
    """How far the point of a step moves, if the step before had other rows."""
    _SETTLED = 8
    """After so many steps of the same rows, their time is known, however the speed and the shape share in it."""
    _SETTLED_RATE = 0.5
    """How far both move, at that time, if a step of fewer rows is faster than expected: no stall makes it so."""
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
        self._shape = list(self._prior)  # never falls from one point to the next, and begins with 1
        self._measured: set[int] = set()  # points near which a step was measured
        self._last = 0  # rows of the last step
        self._run = 0  # steps of these rows, one after another
        self.one_row_s = 1.0
        """How long a step of one row takes now: others of this machine slow down and speed up with it."""

    def seconds(self, rows: int) -> float:
        """The expected time of a step with `rows` rows."""
        return self.one_row_s * _between(self._shape, *self._place(rows))

    def record(self, rows: int, seconds: float) -> None:
        """Learns that a step in which all sequences decoded took `seconds`."""
        low, share = self._place(rows)
        is_first = not self._measured
        near = {low, low + 1} if share else {low}
        is_new = not near <= self._measured
        self._measured |= near
        last, self._last = self._last, rows
        run, self._run = self._run, self._run + 1 if rows == last else 1
        if is_first:
            self.one_row_s = seconds / _between(self._shape, low, share)
            return
        expected = self.seconds(rows)
        error = min(seconds / expected, 2.0) - 1  # bounded: a stall of the machine says nothing about rows
        self._forget(low)
        if is_new:
            self._move(rows, error)
        elif rows < last and run >= self._SETTLED and error < 0:
            change = 1 + self._SETTLED_RATE * error
            self.one_row_s *= change
            self._move(last, 1 / change - 1)
        else:
            self._learn_shape(rows, last, self._SHAPE_RATE * error)
            self.one_row_s *= 1 + self._SPEED_RATE * error
        self._extrapolate()

    def _learn_shape(self, rows: int, last: int, error: float) -> None:
        """error: of the time of `rows` rows, by that of `last` rows just before."""
        if rows == last:
            return
        if rows == 1:
            self._move(last, -error)
        elif last == 1:
            self._move(rows, error)
        else:
            self._move(rows, error / 2)
            self._move(last, -error / 2)

    def _move(self, rows: int, error: float) -> None:
        """Changes the relative time of so many rows by a share of it; more rows never take less time than fewer."""
        low, share = self._place(rows)
        if not low and not share:
            return
        scale = error * _between(self._shape, low, share) / ((1 - share) ** 2 + share**2)
        for point, part in ((low, 1 - share), (low + 1, share)):
            if part:
                self._shape[point] = max(self._shape[point] + part * scale, 1.0)
        end = low + 1 if share else low
        self._shape[end] = max(self._shape[low], self._shape[end])
        for point in range(1, low):
            self._shape[point] = min(self._shape[point], self._shape[low])
        for point in range(end + 1, len(self._shape)):
            self._shape[point] = max(self._shape[point], self._shape[end])

    def _forget(self, low: int) -> None:
        """Moves points that are not near `low` back to the prior."""
        keep = 1 - self._FORGET
        for point, value in enumerate(self._prior):
            if not low <= point <= low + 1:
                self._shape[point] = min(self._shape[point], keep * self._shape[point] + self._FORGET * value)

    def _extrapolate(self) -> None:
        """Sets the points where nothing was measured: rows cost as much more, or less, than the prior as measured ones.

        So more rows are tried where the first ones were cheap.
        """
        first, last = min(self._measured), max(self._measured)
        base, prior = self._shape[first], self._prior[first]
        share = 1.0
        if last > first:
            share = (self._shape[last] / base - 1) / (self._prior[last] / prior - 1)
            share = min(max(share, self._LEAST_SHARE), self._MOST_SHARE)
        for point, value in enumerate(self._prior):
            if point not in self._measured and point:
                near = last if point > last else first
                self._shape[point] = self._shape[near] + share * base * (value - self._prior[near]) / prior
        for point in range(1, len(self._shape)):
            self._shape[point] = max(self._shape[point], self._shape[point - 1])

    def _place(self, rows: int) -> tuple[int, float]:
        """The index of the point at or before `rows`, and the fraction of the way from there to the next point."""
        low = min(bisect_right(self.ROWS, rows), len(self.ROWS) - 1) - 1
        return low, (rows - self.ROWS[low]) / (self.ROWS[low + 1] - self.ROWS[low])


def _between(values: Sequence[float], low: int, share: float) -> float:
    return values[low] + share * (values[low + 1] - values[low])
