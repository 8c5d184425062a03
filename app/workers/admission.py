"""The worker's places: as many requests as may run and wait, and an error for one more.

Which of them run is the engine's choice (`app.engine.scheduling`), who shares its time fairly. This counts requests and
knows nothing of what they are. For one event loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from app.messages.failures import QueueFullError


class Admission:
    """Limits the requests that are here at a time."""

    def __init__(self, *, max_concurrent: int, max_queued: int) -> None:
        """max_concurrent: requests that run at a time. max_queued: requests that may wait."""
        self._most = max_concurrent + max_queued
        self.taken = 0
        """Requests that run or wait."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request. Raises QueueFullError at once if there is none."""
        if self.taken >= self._most:
            raise QueueFullError(f"All {self._most} places are taken. Try again later.")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
