"""One router's view of how many requests each worker has: its own at once, other routers' as of the last count.

A count from outside (a report, a probe, a worker's answer to a request) includes this router's own requests. They are
subtracted, so that the stored rest is the other routers' part, and a request of this router counts exactly once from
the moment its worker is chosen until it ends. No Ray, and no clock: callers pass seconds of a monotonic clock.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final

# A reservation lasts from choosing a worker to sending, one turn of the loop. It expires because a request that is
# cancelled in between is never sent.
_RESERVATION_S: Final = 1.0
_LONGEST_INTERVAL: Final = 2.0
"""Two reports that are this many report periods apart have lost one in between."""


class QueueLengths:
    """Queue lengths by worker id. `of` and `of_all` are thread-safe; the other methods belong to one thread."""

    def __init__(self, report_period_s: float = 1.0) -> None:
        """report_period_s: how often a worker reports."""
        self._longest_interval_s = _LONGEST_INTERVAL * report_period_s
        self._own: dict[str, int] = {}
        self._most_own: dict[str, tuple[int, int]] = {}  # since the last report; between the one before it and it
        self._others: dict[str, int] = {}  # below 0 if a place is free that the last count still holds
        self._others_reported: dict[str, int] = {}
        self._admitted: dict[str, tuple[int, float]] = {}
        self._arrived: dict[str, float] = {}
        self._reserved_until_s: dict[str, list[float]] = {}

    def of(self, worker_id: str, now_s: float) -> int:
        """Requests at the worker, including those for which it was chosen but which are not sent yet."""
        return self.of_all((worker_id,), now_s)[0]

    def of_all(self, worker_ids: Sequence[str], now_s: float) -> list[int]:
        """Returns `of` for each worker."""
        own, others, reserved = self._own.get, self._others.get, self._reserved_until_s.get
        lengths = [max(0, own(worker_id, 0) + others(worker_id, 0)) for worker_id in worker_ids]
        if self._reserved_until_s:
            for index, worker_id in enumerate(worker_ids):
                if held := reserved(worker_id):
                    lengths[index] += sum(until_s > now_s for until_s in tuple(held))
        return lengths

    def unseen(self, worker_ids: Iterable[str]) -> float:
        """Estimates how many requests other routers send to these workers between two reports, from the last two.

        Uses reports only: an answer's count may include a request of this router that the router already knows to have
        ended.
        """
        own = others = 0
        arrived = 0.0
        for worker_id in worker_ids:
            own += self._own.get(worker_id, 0)
            others += self._others_reported.get(worker_id, 0)
            arrived += self._arrived.get(worker_id, 0.0)
        return arrived * others / (others + own) if others else 0.0

    def reserve(self, worker_id: str, now_s: float) -> None:
        """Counts a request for which this router has chosen the worker, until it is sent."""
        held = [until_s for until_s in self._reserved_until_s.get(worker_id, ()) if until_s > now_s]
        self._reserved_until_s[worker_id] = [*held, now_s + _RESERVATION_S]

    def release(self, worker_id: str) -> None:
        """Ends a reservation, because the request was sent, or goes to another worker.

        The newest reservation ends: an older one may belong to a request that is never sent, and must not be renewed.
        """
        held = self._reserved_until_s.get(worker_id)
        if held:
            held.pop()
        if not held:
            self._reserved_until_s.pop(worker_id, None)

    def sent(self, worker_id: str) -> None:
        """Counts a request that this router has sent, and ends its reservation."""
        own = self._own[worker_id] = self._own.get(worker_id, 0) + 1
        most, before = self._most_own.get(worker_id, (0, 0))
        self._most_own[worker_id] = max(own, most), before
        self.release(worker_id)

    def completed(self, worker_id: str) -> None:
        """Moves a request of this router out of its own count, leaving the worker's length as it is.

        The worker has sent the request back, so its count did not include it; or the request has ended: see `freed`.
        """
        if (own := self._own.get(worker_id, 0)) < 1:
            return
        if own > 1:
            self._own[worker_id] = own - 1
        else:
            del self._own[worker_id]
        self._others[worker_id] = self._others.get(worker_id, 0) + 1

    def freed(self, worker_id: str) -> None:
        """Frees a place that a request of this router had; before or after `completed`."""
        self._others[worker_id] = self._others.get(worker_id, 0) - 1

    def ended(self, worker_id: str) -> None:
        """Counts an accepted request of this router as ended, in whatever way."""
        if worker_id in self._own:
            self.completed(worker_id)
            self.freed(worker_id)

    def counted(self, worker_id: str, length: int) -> None:
        """Takes the length from a worker's answer just now, which includes this router's requests."""
        self._others[worker_id] = max(0, length - self._own.get(worker_id, 0))

    def reported(self, worker_id: str, length: int, admitted: int = 0, heart_beat_s: float = 0.0) -> None:
        """Takes a length that the worker has reported at some time since the last received report but one.

        It subtracts the most requests that this router had there in that time, so that one that has ended since is not
        taken for another router's. admitted: requests that have begun there since its start. heart_beat_s: when the
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
        """Drops workers that are gone. This router's own requests are dropped when they end."""
        known = self._others.keys() | self._most_own.keys() | self._reserved_until_s.keys()
        for gone in [worker_id for worker_id in known if worker_id not in worker_ids]:
            for counts in (self._others, self._others_reported, self._most_own, self._admitted, self._arrived):
                counts.pop(gone, None)
            self._reserved_until_s.pop(gone, None)
