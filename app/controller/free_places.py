"""When a worker's queue will have room again, told to those who are refused: a Retry-After that is true.

A place becomes free whenever a request ends, so the time between two ends is the time between two places. Each refused
client is promised the next one that nobody else was promised. Who all were told the same second would all come back in
it, and all but one of them would be refused again. No promise is later than when all places will have been free once:
clients that do not wait must not delay those that do. One ingress knows the ends of its own requests only. No Ray, and
no clock of its own: callers pass seconds of a monotonic clock.
"""

from collections import deque
from math import ceil
from typing import Final

LONGEST_S: Final = 60
_MEMORY: Final = 32


class FreePlaces:
    """One model's places. For one event loop."""

    def __init__(self) -> None:
        """Knows of no end yet: it promises one second."""
        self._ends_s: deque[float] = deque(maxlen=_MEMORY)
        self._promised_until_s = 0.0

    def restart(self) -> None:
        """Nobody is here: the time until somebody comes says nothing."""
        self._ends_s.clear()
        self._promised_until_s = 0.0

    def ended(self, now_s: float) -> None:
        """A request has ended, however it did, and its place is free."""
        self._ends_s.append(now_s)

    def promise(self, now_s: float, places: int) -> int:
        """After how many whole seconds, 1 to LONGEST_S, one more client should try again. places: all there are."""
        between_s = 0.0
        if len(self._ends_s) > 1:
            # Without an end for long, the present silence is what says how long requests take.
            between_s = max(now_s - self._ends_s[0], 0.0) / len(self._ends_s)
        self._promised_until_s = max(self._promised_until_s, now_s) + between_s
        self._promised_until_s = min(self._promised_until_s, now_s + max(places, 1) * between_s)
        return max(1, min(LONGEST_S, ceil(self._promised_until_s - now_s)))
