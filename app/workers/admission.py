"""The worker's semaphore: a bounded number of running requests, a bounded queue, and an error when both are full.

It counts requests and knows nothing of what they are. For one event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.messages.failures import QueueFullError


class Admission:
    """Limits the requests that run at a time, and those that wait for it."""

    def __init__(self, *, max_concurrent: int, max_queued: int) -> None:
        """max_concurrent: requests that run at a time. max_queued: requests that may wait."""
        self._semaphore = asyncio.Semaphore(max_concurrent)
        self._max_queued = max_queued
        self._running = 0
        self._waiting = 0

    @property
    def running(self) -> int:
        """Requests that run."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._waiting

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for a place, in order of arrival, and holds it. Raises QueueFullError at once if too many wait."""
        if self._semaphore.locked() and self._waiting >= self._max_queued:
            raise QueueFullError(f"All places are taken and {self._waiting} requests wait. Try again later.")
        self._waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._semaphore.release()
