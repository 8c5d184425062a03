"""Computes Retry-After for requests refused because every worker's queue is full.

A place becomes free whenever a request ends, so the time between two ends is the time between two places. Each refused
client is given the next place that no other client was given; clients with the same Retry-After would all come back at
once, and all but one would be refused again. No Retry-After is later than the time in which all places become free
once, so that clients that do not come back do not delay those that do. Each ingress sees only its own requests end. No
Ray, and no clock of its own: callers pass seconds of a monotonic clock.
"""

from collections import deque
from math import ceil
from typing import Final

LONGEST_S: Final = 60
_MEMORY: Final = 32


class FreePlaces:
    """Predicts when places of one model become free. For one event loop."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_MEMORY)
        self._given_until_s = 0.0

    def restart(self) -> None:
        """Restarts the measurement after an idle time, which says nothing about how long requests take."""
        self._ends_s.clear()
        self._given_until_s = 0.0

    def ended(self, now_s: float) -> None:
        """Records that a request has ended, in whatever way, and freed its place."""
        self._ends_s.append(now_s)

    def retry_after_s(self, now_s: float, places: int) -> int:
        """Returns a Retry-After in whole seconds, 1 to LONGEST_S. places: the total number of places."""
        between_s = 0.0
        if len(self._ends_s) > 1:
            # If nothing has ended for long, the time since then shows how long requests take.
            between_s = max(now_s - self._ends_s[0], 0.0) / len(self._ends_s)
        self._given_until_s = max(self._given_until_s, now_s) + between_s
        self._given_until_s = min(self._given_until_s, now_s + max(places, 1) * between_s)
        return max(1, min(LONGEST_S, ceil(self._given_until_s - now_s)))
