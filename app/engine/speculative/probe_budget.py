"""Bounds the time that is spent to learn whether drafts would pay, where they don't: a share of the last steps' time.

A share of all time so far would let a long pause pay for a burst. Only reading a text first, which a draft model must
where prompts are long, may take more at once than the last steps allow: another such share is saved up for it. Knows
neither drafts nor models.
"""

from collections import deque
from typing import Final

SHARE: Final = 0.01
"""Of the time of any STEPS steps in a row, the most that is expected to be spent."""
STEPS: Final = 100
_MARGIN: Final = 1.25
"""What is expected to be spent is counted as so much more: it is not known exactly."""


MOST: Final = SHARE * STEPS / _MARGIN
"""The most that can be expected to be spent at once, in steps' times."""


class ProbeBudget:
    """What was spent in each of the last steps, and what is saved up."""

    __slots__ = ("_last", "_longest_s", "_next_s", "_saved_s")

    def __init__(self) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=STEPS - 1)  # (seconds of the step, seconds spent)
        self._next_s = 0.0
        self._saved_s = 0.0
        self._longest_s = 0.0  # the most that is saved up: what the longest text was expected to take

    def allows(self, cost_s: float, step_s: float) -> bool:
        """Whether about `cost_s` may be spent for a step that is about to be made. step_s: its time without that."""
        taken_s = sum(seconds for seconds, _ in self._last) + step_s
        spent_s = sum(spent for _, spent in self._last) + self._next_s
        return spent_s + _MARGIN * cost_s <= SHARE * taken_s

    def allows_reading(self, cost_s: float) -> bool:
        """Whether enough is saved up to read a text, or the rest of one, in about `cost_s`."""
        self._longest_s = max(self._longest_s, _MARGIN * cost_s)
        return _MARGIN * cost_s <= self._saved_s

    def spend_reading(self, seconds: float, *, is_done: bool) -> None:
        """Takes time off what is saved up, or all of it if the text is read: the rest pays for no other text."""
        self._saved_s -= seconds
        if is_done:
            self._saved_s = min(self._saved_s, 0.0)

    def spend(self, seconds: float) -> None:
        """Counts time that was spent for the next step, or in it."""
        self._next_s += seconds

    def stepped(self, seconds: float) -> None:
        """A step took `seconds`, without what was spent."""
        self._last.append((seconds, self._next_s))
        self._saved_s = min(self._saved_s + SHARE * seconds, self._longest_s)
        self._next_s = 0.0
