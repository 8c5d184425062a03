"""One router's knowledge of the workers, and the order in which it prefers them for a request.

Applies the pure functions of `policies` to the worker table and the queue lengths. No Ray and no clock, so that the
simulation of many routers (`bench.scale`) runs this very code.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from app.controller.policies import home_first, home_of, lottery_order, shortest_queue_order, spread
from app.controller.queue_lengths import QueueLengths
from app.controller.worker_table import WorkerTable
from app.messages.requests import GenerateRequest, Priority
from app.messages.workers import WorkerFacts, WorkerReport

MOST_ASKED: Final = 32
"""The most workers that a request probes although they are full by the known counts. In a cluster of hundreds of full
workers it would otherwise probe each of them, one after another, before it is refused."""


class RouterState:
    """One router's table, queue lengths and policy."""

    def __init__(self, *, policy: str, table: WorkerTable, rng: random.Random, report_period_s: float = 1.0) -> None:
        """policy: LOTTERY or SHORTEST_QUEUE. report_period_s: how often a worker reports."""
        self._is_lottery = policy == "LOTTERY"
        self._rng = rng
        self.table = table
        self.queues = QueueLengths(report_period_s)

    def update(self, workers: Mapping[str, tuple[WorkerFacts, WorkerReport | None]], now_s: float) -> dict[str, int]:
        """Takes the current list of workers.

        Returns, for each that has reported since, the most requests that it may have.

        That may exceed its queue length: a worker that has reported that it is full is probed before it gets a request,
        also where requests of this router have ended since, because others may have taken their places.
        """
        most: dict[str, int] = {}
        self.queues.keep(workers)
        for worker_id in self.table.update(workers, now_s):
            _, report = workers[worker_id]
            if report is not None:
                length = report.running + report.waiting + report.batch
                self.queues.reported(worker_id, length, report.admitted, report.heart_beat)
                most[worker_id] = max(self.queues.of(worker_id, now_s), length)
        return most

    def candidates(
        self,
        worker_ids: Sequence[str],
        is_full: Callable[[int], bool],
        request: GenerateRequest | None,
        now_s: float,
    ) -> Iterator[int]:
        """Indices of live workers in the order in which they should be asked for a place.

        is_full: whether the worker with that index is full, evaluated when its turn comes. request: None for calls that
        don't generate.
        """
        asked = 0
        for index in self.order(worker_ids, request, now_s):
            if is_full(index):
                asked += 1
                if asked > MOST_ASKED:
                    continue
            yield index

    def order(self, worker_ids: Sequence[str], request: GenerateRequest | None, now_s: float) -> list[int]:
        """All indices, best first: the user's home if the request has one, then the policy's order."""
        if not worker_ids:
            return []
        speeds = [self.table.speed(worker_id) for worker_id in worker_ids]
        lengths = self.queues.of_all(worker_ids, now_s)
        if request is not None and request.priority is Priority.NORMAL:  # it does not wait for batches
            known = zip(worker_ids, lengths, strict=True)
            lengths = [max(0, length - self.table.of_batches(worker_id)) for worker_id, length in known]
        if self._is_lottery:
            order = lottery_order(speeds, self._rng)
        else:
            order = shortest_queue_order(lengths, speeds)
            order = spread(order, lengths, speeds, self.queues.unseen(worker_ids), self._rng)
        if request is None:
            return order
        if request.memory is not None:
            order = home_first(order, home_of(request.memory.owner, worker_ids, speeds), lengths, speeds)
        if request.resumed_arithmetic:
            alike = [self.table.arithmetic(worker_id) == request.resumed_arithmetic for worker_id in worker_ids]
            order.sort(key=lambda i: not alike[i])  # workers with the same arithmetic first; stable
        return order
