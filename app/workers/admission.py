"""Bounds a worker's requests: it has places for those that run and wait, and an error for one more.

The engine chooses which of them run (`app.engine.scheduling`). This only counts requests. For one event loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from app.messages.failures import QueueFullError


class Admission:
    """Limits the number of requests in the worker."""

    def __init__(self, *, max_concurrent: int, max_queued: int) -> None:
        """max_concurrent: requests that run at a time. max_queued: requests that may wait."""
        self._most = max_concurrent + max_queued
        self.taken = 0
        """Requests that run or wait."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """Takes a place for one request. Raises QueueFullError at once if there is none."""
        if self.taken >= self._most:
            raise QueueFullError(f"All {self._most} places are taken. Try again later.")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
