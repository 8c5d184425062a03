"""How many requests each worker has, as one router knows it: its own at once, other routers' by the last count.

A count that comes from outside (a report, a probe, a worker's answer to a request) holds this router's own requests
too. They are taken off, so that what is kept of it is the others' part, and a request of this router counts from the
moment it is chosen until it ends, once. No Ray, and no clock: callers pass seconds of a monotonic clock.
"""

from collections.abc import Container, Sequence
from typing import Final

# A reservation lasts from choosing a worker to sending, one turn of the loop. It expires because a request that is
# cancelled in between is never sent.
_RESERVATION_S: Final = 1.0


class QueueLengths:
    """Queue lengths by worker id. `of` and `of_all` may be called from any thread, the other methods from one."""

    def __init__(self) -> None:
        """Knows of no request."""
        self._own: dict[str, int] = {}
        self._most_own: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._others_reported: dict[str, int] = {}
        self._admitted: dict[str, int] = {}
        self._arrived: dict[str, int] = {}
        self._reserved_until_s: dict[str, list[float]] = {}

    def of(self, worker_id: str, now_s: float) -> int:
        """Requests at the worker, with those that have been chosen for it but not sent yet."""
        return self.of_all((worker_id,), now_s)[0]

    def of_all(self, worker_ids: Sequence[str], now_s: float) -> list[int]:
        """The same of each worker."""
        own, others, reserved = self._own.get, self._others.get, self._reserved_until_s.get
        lengths = [own(worker_id, 0) + others(worker_id, 0) for worker_id in worker_ids]
        if self._reserved_until_s:
            for index, worker_id in enumerate(worker_ids):
                if held := reserved(worker_id):
                    lengths[index] += sum(until_s > now_s for until_s in tuple(held))
        return lengths

    def unseen(self) -> float:
        """How many requests other routers send between two reports, by those that began between the last two.

        By reports alone: an answer's count may hold a request of this router whose end it has seen before the worker.
        """
        others = sum(self._others_reported.values())
        return sum(self._arrived.values()) * others / (others + sum(self._own.values())) if others else 0.0

    def reserve(self, worker_id: str, now_s: float) -> None:
        """This router has chosen the worker for a request."""
        held = [until_s for until_s in self._reserved_until_s.get(worker_id, ()) if until_s > now_s]
        self._reserved_until_s[worker_id] = [*held, now_s + _RESERVATION_S]

    def release(self, worker_id: str) -> None:
        """A request that the worker was chosen for goes elsewhere, or has been sent."""
        held = self._reserved_until_s.get(worker_id)
        if held:
            held.pop(0)
        if not held:
            self._reserved_until_s.pop(worker_id, None)

    def sent(self, worker_id: str) -> None:
        """This router has sent a request, whose reservation ends."""
        own = self._own[worker_id] = self._own.get(worker_id, 0) + 1
        self._most_own[worker_id] = max(own, self._most_own.get(worker_id, 0))
        self.release(worker_id)

    def ended(self, worker_id: str) -> None:
        """A request of this router has ended, however it did."""
        own = self._own.get(worker_id, 0) - 1
        if own > 0:
            self._own[worker_id] = own
        else:
            self._own.pop(worker_id, None)

    def counted(self, worker_id: str, length: int) -> None:
        """The worker was asked just now and has so many requests, this router's included."""
        self._others[worker_id] = max(0, length - self._own.get(worker_id, 0))

    def reported(self, worker_id: str, length: int, admitted: int = 0) -> None:
        """The worker has reported so many, some time since its last report was heard.

        Of this router's own requests those count that it had at most in that time: one that has ended since must not
        be taken for another router's. admitted: requests that have begun there since its start.
        """
        own = self._own.get(worker_id, 0)
        others = max(0, length - max(own, self._most_own.get(worker_id, 0)))
        self._others[worker_id] = self._others_reported[worker_id] = others
        self._most_own[worker_id] = own
        self._arrived[worker_id] = max(0, admitted - self._admitted.get(worker_id, admitted))
        self._admitted[worker_id] = admitted

    def keep(self, worker_ids: Container[str]) -> None:
        """Forgets the others' requests at workers that are gone. Own ones are forgotten when they end."""
        known = self._others.keys() | self._most_own.keys()
        for gone in [worker_id for worker_id in known if worker_id not in worker_ids]:
            for counts in (self._others, self._others_reported, self._most_own, self._admitted, self._arrived):
                counts.pop(gone, None)
