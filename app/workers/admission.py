"""The worker's places: a bounded number of running requests, a bounded queue, and an error when both are full.

It counts requests and knows nothing of what they are. For one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from app.messages.failures import QueueFullError


class Turn:
    """One request's wait for a place, which it may have at once."""

    __slots__ = ("_came", "_queue", "since_s")

    def __init__(self, queue: "deque[Turn]") -> None:
        self._queue = queue
        self.since_s = monotonic()
        self._came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_come(self) -> bool:
        """Whether the request has its place."""
        return self._came.done()

    @property
    def ahead(self) -> int:
        """How many requests get their places before it; 0 also if it has one."""
        return 0 if self.has_come else self._queue.index(self)

    def come(self) -> None:
        """Gives it a place."""
        self._came.set_result(None)

    async def wait(self, within_s: float | None = None) -> None:
        """Returns when the place is there, or after that time."""
        if not self.has_come:
            await asyncio.wait((self._came,), timeout=within_s)


class Admission:
    """Limits the requests that run at a time, and those that wait for it."""

    def __init__(self, *, max_concurrent: int, max_queued: int) -> None:
        """max_concurrent: requests that run at a time. max_queued: requests that may wait."""
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._running = 0
        self._queue: deque[Turn] = deque()
        self.admitted = 0
        """Requests that have had a place."""
        self.queued_s = 0.0
        """How long all of them together have waited for it."""

    @property
    def running(self) -> int:
        """Requests that run."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """A place, in order of arrival; it is there when `wait` has returned.

        Raises QueueFullError at once if too many wait.
        """
        if self._running >= self._max_concurrent and len(self._queue) >= self._max_queued:
            raise QueueFullError(f"All places are taken and {len(self._queue)} requests wait. Try again later.")
        turn = Turn(self._queue)
        self._queue.append(turn)
        self._advance()
        try:
            yield turn
        finally:
            if turn.has_come:
                self._running -= 1
                self._advance()
            else:
                self._queue.remove(turn)

    def _advance(self) -> None:
        while self._queue and self._running < self._max_concurrent:
            self._running += 1
            turn = self._queue.popleft()
            self.admitted += 1
            self.queued_s += monotonic() - turn.since_s
            turn.come()
