"""What other threads tell the engine's thread: new requests, aborts, calls, and that it must end.

Knows which requests live, and nothing of how they are computed.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

from app.engine.generation import Deliver, Generation
from app.engine.searches.branches import Search
from app.messages.failures import EngineError, EngineStoppedError, InvalidRequestError

Entry = tuple[Literal["submit", "abort"], Generation, Search | None]
Call = Callable[[], None]


class Inbox:
    """A queue of what the engine's thread does before its next step."""

    def __init__(self) -> None:
        self.interrupt = np.zeros(1, np.int32)
        """Ends a step of batches early: a request came that is to be computed before them."""
        self._wake = threading.Condition()
        self._entries: deque[Entry] = deque()
        self._calls: deque[Call] = deque()
        self._live: dict[str, Generation] = {}
        self._closed_by: EngineError | None = None

    # --- any thread -------------------------------------------------------------------------------------------------

    def submit(self, generation: Generation, search: Search | None) -> None:
        """Queues a request. Raises InvalidRequestError, EngineStoppedError."""
        request = generation.request
        with self._wake:
            if self._closed_by is not None:
                raise EngineStoppedError(str(self._closed_by))
            if request.request_id in self._live:
                raise InvalidRequestError(f"request id {request.request_id!r} is in use")
            self._live[request.request_id] = generation
            self._entries.append(("submit", generation, search))
            if not generation.sequence.is_batch:
                self.interrupt[0] = 1
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        """Marks a request as aborted, unless it is unknown or has ended, and tells the engine to forget it."""
        with self._wake:
            generation = self._live.pop(request_id, None)
            if generation is not None:
                generation.aborted = True
                self._entries.append(("abort", generation, None))
                self._wake.notify()

    def abort_all_of(self, receiver: Deliver) -> None:
        """Aborts the requests whose events this receiver gets."""
        with self._wake:
            theirs = [request_id for request_id, generation in self._live.items() if generation.deliver == receiver]
        for request_id in theirs:
            self.abort(request_id)

    def post(self, call: Call) -> bool:
        """Schedules a call on the engine's thread, before its next step. Returns False if that thread has ended."""
        with self._wake:
            if self._closed_by is not None:
                return False
            self._calls.append(call)
            self._wake.notify()
            return True

    def close(self, reason: EngineError) -> None:
        """Refuses what comes from now on, and ends the thread before its next step. The first reason stands."""
        with self._wake:
            self._closed_by = self._closed_by or reason
            self._wake.notify()

    @property
    def closed_by(self) -> EngineError | None:
        """Why nothing is accepted any more; None: requests are."""
        return self._closed_by

    # --- the engine's thread ----------------------------------------------------------------------------------------

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def has_news(self) -> bool:
        """Whether there is something to take, or the thread must end."""
        return bool(self._entries or self._calls) or self._closed_by is not None

    def wait(self, timeout_s: float | None) -> None:
        """Blocks until `has_news`, at most so long; None: without limit."""
        with self._wake:
            self._wake.wait_for(lambda: self.has_news, timeout_s)

    def take(self) -> tuple[deque[Entry], deque[Call]]:
        """Returns all entries and calls, in their order."""
        with self._wake:
            self.interrupt[0] = 0
            entries, self._entries = self._entries, deque()
            calls, self._calls = self._calls, deque()
        return entries, calls

    def forget(self, generation: Generation) -> None:
        """Makes the id of a request that has ended free again."""
        with self._wake:
            if self._live.get(generation.request.request_id) is generation:
                del self._live[generation.request.request_id]

    def take_live(self) -> list[Generation]:
        """Returns the requests that have not ended and forgets them, because the engine ends."""
        with self._wake:
            left = list(self._live.values())
            self._live.clear()
        return left
