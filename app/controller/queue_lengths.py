"""How many requests each worker has, as one router knows it: its own at once, other routers' by the last count.

A count that comes from outside (a report, a probe, a worker's answer to a request) holds this router's own requests
too. They are taken off, so that what is kept of it is the others' part, and a request of this router counts from the
moment it is chosen until it ends, once. No Ray, and no clock: callers pass seconds of a monotonic clock.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final

# A reservation lasts from choosing a worker to sending, one turn of the loop. It expires because a request that is
# cancelled in between is never sent.
_RESERVATION_S: Final = 1.0
_LONGEST_INTERVAL: Final = 2.0
"""In report periods: two reports that are further apart had lost ones between them."""


class QueueLengths:
    """Queue lengths by worker id. `of` and `of_all` may be called from any thread, the other methods from one."""

    def __init__(self, report_period_s: float = 1.0) -> None:
        """Knows of no request. report_period_s: how often a worker reports."""
        self._longest_interval_s = _LONGEST_INTERVAL * report_period_s
        self._own: dict[str, int] = {}
        self._most_own: dict[str, tuple[int, int]] = {}  # since the last report; between the one before it and it
        self._others: dict[str, int] = {}  # below 0 if a place is free that the last count still holds
        self._others_reported: dict[str, int] = {}
        self._admitted: dict[str, tuple[int, float]] = {}
        self._arrived: dict[str, float] = {}
        self._reserved_until_s: dict[str, list[float]] = {}

    def of(self, worker_id: str, now_s: float) -> int:
        """Requests at the worker, with those that have been chosen for it but not sent yet."""
        return self.of_all((worker_id,), now_s)[0]

    def of_all(self, worker_ids: Sequence[str], now_s: float) -> list[int]:
        """The same of each worker."""
        own, others, reserved = self._own.get, self._others.get, self._reserved_until_s.get
        lengths = [max(0, own(worker_id, 0) + others(worker_id, 0)) for worker_id in worker_ids]
        if self._reserved_until_s:
            for index, worker_id in enumerate(worker_ids):
                if held := reserved(worker_id):
                    lengths[index] += sum(until_s > now_s for until_s in tuple(held))
        return lengths

    def unseen(self, worker_ids: Iterable[str]) -> float:
        """How many requests other routers send to these workers between two reports: what began between the last two.

        By reports alone: an answer's count may hold a request of this router whose end it has seen before the worker.
        """
        own = others = 0
        arrived = 0.0
        for worker_id in worker_ids:
            own += self._own.get(worker_id, 0)
            others += self._others_reported.get(worker_id, 0)
            arrived += self._arrived.get(worker_id, 0.0)
        return arrived * others / (others + own) if others else 0.0

    def reserve(self, worker_id: str, now_s: float) -> None:
        """This router has chosen the worker for a request."""
        held = [until_s for until_s in self._reserved_until_s.get(worker_id, ()) if until_s > now_s]
        self._reserved_until_s[worker_id] = [*held, now_s + _RESERVATION_S]

    def release(self, worker_id: str) -> None:
        """A request that the worker was chosen for goes elsewhere, or has been sent.

        The newest reservation ends: an older one may be of a request that is never sent, and must not be renewed.
        """
        held = self._reserved_until_s.get(worker_id)
        if held:
            held.pop()
        if not held:
            self._reserved_until_s.pop(worker_id, None)

    def sent(self, worker_id: str) -> None:
        """This router has sent a request, whose reservation ends."""
        own = self._own[worker_id] = self._own.get(worker_id, 0) + 1
        most, before = self._most_own.get(worker_id, (0, 0))
        self._most_own[worker_id] = max(own, most), before
        self.release(worker_id)

    def completed(self, worker_id: str) -> None:
        """A request that this router sent is none any more. The worker's length is as it was.

        The worker has sent the request back, and its count did not hold it. Or the request has ended: see `freed`.
        """
        if (own := self._own.get(worker_id, 0)) < 1:
            return
        if own > 1:
            self._own[worker_id] = own - 1
        else:
            del self._own[worker_id]
        self._others[worker_id] = self._others.get(worker_id, 0) + 1

    def freed(self, worker_id: str) -> None:
        """A place that a request of this router had is free; before or after `completed`."""
        self._others[worker_id] = self._others.get(worker_id, 0) - 1

    def ended(self, worker_id: str) -> None:
        """A request of this router that the worker had accepted has ended, however it did."""
        if worker_id in self._own:
            self.completed(worker_id)
            self.freed(worker_id)

    def counted(self, worker_id: str, length: int) -> None:
        """The worker was asked just now and has so many requests, this router's included."""
        self._others[worker_id] = max(0, length - self._own.get(worker_id, 0))

    def reported(self, worker_id: str, length: int, admitted: int = 0, heart_beat_s: float = 0.0) -> None:
        """The worker has reported so many, some time since the last report but one was heard.

        Of this router's own requests those count that it had at most in that time: one that has ended since must not
        be taken for another router's. admitted: requests that have begun there since its start. heart_beat_s: when the
        worker made the report, by its own clock.
        """
        own = self._own.get(worker_id, 0)
        most, before = self._most_own.get(worker_id, (0, 0))
        others = max(0, length - max(own, most, before))
        self._others[worker_id] = self._others_reported[worker_id] = others
        self._most_own[worker_id] = own, max(own, most)
        last, last_s = self._admitted.get(worker_id, (admitted, heart_beat_s))
        arrived: float = max(0, admitted - last)
        if (interval_s := heart_beat_s - last_s) > self._longest_interval_s:
            arrived *= self._longest_interval_s / interval_s
        self._arrived[worker_id] = arrived
        self._admitted[worker_id] = admitted, heart_beat_s

    def keep(self, worker_ids: Container[str]) -> None:
        """Forgets what there is of workers that are gone. Own requests are forgotten when they end."""
        known = self._others.keys() | self._most_own.keys() | self._reserved_until_s.keys()
        for gone in [worker_id for worker_id in known if worker_id not in worker_ids]:
            for counts in (self._others, self._others_reported, self._most_own, self._admitted, self._arrived):
                counts.pop(gone, None)
            self._reserved_until_s.pop(gone, None)
