"""Bounds a worker's requests: it has places for those that run and wait, and an error for one more.

Requests of batches leave some places free. When others take those too, batches give theirs back: their requests end
with an error, and go on later, here or elsewhere. So others are refused only where they have all places themselves.
The engine chooses which of the requests run (`app.engine.scheduling`). This only counts them. For one event loop.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.messages.failures import QueueFullError
from app.messages.workers import places_for_batches


class Place:
    """One request's place."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self.give_back = give_back
        """Called when the place is wanted back."""
        self.is_wanted_back = False


class Admission:
    """Limits the number of requests in the worker."""

    def __init__(self, *, max_concurrent: int, max_queued: int) -> None:
        """max_concurrent: requests that run at a time. max_queued: requests that may wait."""
        self._most = max_concurrent + max_queued
        self._batches: list[Place] = []  # oldest first
        self.taken = 0
        """Requests that run or wait."""

    @property
    def of_batches(self) -> int:
        """How many of them are of batches."""
        return len(self._batches)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Takes a place for one request. Raises QueueFullError at once if there is none."""
        if self.taken >= self._most:
            raise QueueFullError(f"All {self._most} places are taken. Try again later.")
        self.taken += 1
        try:
            self._want_back()
            yield
        finally:
            self.taken -= 1

    @contextmanager
    def place_of_batch(self, give_back: Callable[[], None]) -> Iterator[Place]:
        """Takes a place for a request of a batch, as `place` does. It must end soon after `give_back` was called."""
        if self.taken >= places_for_batches(self._most):
            raise QueueFullError("A batch's request finds no place now. Try again later.")
        place = Place(give_back)
        self._batches.append(place)
        self.taken += 1
        try:
            yield place
        finally:
            self.taken -= 1
            self._batches.remove(place)

    def _want_back(self) -> None:
        """Asks the youngest of batches for as many places as others have taken of those that are to be free."""
        staying = [place for place in self._batches if not place.is_wanted_back]
        coming = len(self._batches) - len(staying)
        excess = min(self.taken - coming - places_for_batches(self._most), len(staying))
        for place in staying[len(staying) - excess :] if excess > 0 else ():
            place.is_wanted_back = True
            place.give_back()
