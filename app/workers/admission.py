"""The worker's semaphore: N requests at a time, a bounded queue before it, and a clear refusal past it.

It counts, and knows nothing of what the requests are. For one event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.messages.failures import QueueFullError


class Admission:
    """P on entry, V on every way out."""

    def __init__(self, *, max_concurrent: int, max_queued: int) -> None:
        self._semaphore = asyncio.Semaphore(max_concurrent)
        self._max_queued = max_queued
        self._running = 0
        self._waiting = 0

    @property
    def running(self) -> int:
        """Requests inside."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits its turn for a place and holds it. Raises QueueFullError at once if too many wait."""
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
