"""Simulated routers. Those of the service's policies are its own code; two others are there to compare with.

A router here does what `app.controller.router` has Ray Serve do for it: it sends to a worker that has room by Serve's
count, asks one that is full first, hears the true count with every answer, and tries again when it was rejected.
Sending takes no time. Knows nothing of how workers compute. tests/bench/scale plays the same story to both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from app.controller.policies import shortest_queue_order
from app.controller.router_state import RouterState
from app.controller.worker_table import WorkerTable
from app.messages.memory import MemoryGrant
from app.messages.requests import GenerateRequest
from app.messages.workers import WorkerFacts, WorkerReport
from bench.scale.fleet import Job, SimulatedWorker

POLICIES: Final = ("LOTTERY", "SHORTEST_QUEUE", "TWO_CHOICES", "FRESH_COUNTS")
"""TWO_CHOICES: the better of two random workers. FRESH_COUNTS: SHORTEST_QUEUE where nothing is stale."""
_MOST_PASSES: Final = 100
"""The most retries of a request that workers sent back. It ends sooner, because those workers are then known to be
full."""
_MOST_PAIRS: Final = 16


class SimulatedRouter:
    def __init__(
        self,
        policy: str,
        workers: Sequence[SimulatedWorker],
        *,
        seed: int,
        expiration_s: float,
        report_period_s: float = 1.0,
    ) -> None:
        """policy: one of POLICIES."""
        self._policy = policy
        self._workers = {worker.worker_id: worker for worker in workers}
        self._rng = Random(seed)
        table = WorkerTable(expiration_s=expiration_s, forget_after_s=60.0)
        self._state = RouterState(policy=policy, table=table, rng=self._rng, report_period_s=report_period_s)
        self._counts: dict[str, int] = {}
        """Serve's own: by the last answer or report, with what was sent since and without what ended."""
        self.asked = 0
        """Probes of workers that were full by what was known."""
        self.rejected = 0
        """Requests that a worker sent back."""

    def update(self, workers: Mapping[str, tuple[WorkerFacts, WorkerReport | None]], now_s: float) -> None:
        """Hears Serve's broadcast; new workers are asked."""
        for worker_id, length in self._state.update(workers, now_s).items():
            if worker_id in self._counts:
                self._counts[worker_id] = length
        for worker_id in workers:
            if worker_id not in self._counts:
                self._heard(self._workers[worker_id], now_s)

    def lost(self, worker_id: str) -> None:
        """Hears that the worker's process has died."""
        self._state.table.lost(worker_id)

    def ended(self, worker_id: str) -> None:
        """A request of this router has ended."""
        self._state.queues.ended(worker_id)
        self._counts[worker_id] = max(0, self._counts[worker_id] - 1)

    def send(self, job: Job, now_s: float) -> SimulatedWorker | None:
        """Finds a place for the request; None: it is refused."""
        for _ in range(_MOST_PASSES):
            live = [worker_id for worker_id in self._workers if self._state.table.is_alive(worker_id, now_s)]
            worker, was_rejected = self._pass(live, job, now_s)
            if worker is not None or not was_rejected:
                return worker
        return None

    def _pass(self, live: list[str], job: Job, now_s: float) -> tuple[SimulatedWorker | None, bool]:
        queues = self._state.queues
        for index in self._candidates(live, job, now_s):
            worker = self._workers[live[index]]
            if self._is_full(worker):
                self.asked += 1
                self._heard(worker, now_s)
                if self._is_full(worker):
                    continue
            queues.reserve(worker.worker_id, now_s)
            queues.sent(worker.worker_id)
            is_accepted = worker.add(job, now_s)
            self._heard(worker, now_s)
            if is_accepted:
                return worker, False
            queues.completed(worker.worker_id)
            self.rejected += 1
            return None, True
        return None, False

    def _is_full(self, worker: SimulatedWorker) -> bool:
        return self._counts[worker.worker_id] >= worker.places

    def _heard(self, worker: SimulatedWorker, now_s: float) -> None:
        self._counts[worker.worker_id] = worker.length()
        self._state.queues.counted(worker.worker_id, worker.length())
        self._state.table.heard(worker.worker_id, now_s)

    def _candidates(self, live: list[str], job: Job, now_s: float) -> Iterable[int]:
        if self._policy == "FRESH_COUNTS":
            lengths = [self._workers[worker_id].length() for worker_id in live]
            return shortest_queue_order(lengths, [self._workers[worker_id].speed for worker_id in live])
        if self._policy == "TWO_CHOICES":
            return self._two_choices(live, now_s)
        request = _request_of(job.owner)
        return self._state.candidates(live, lambda index: self._is_full(self._workers[live[index]]), request, now_s)

    def _two_choices(self, live: list[str], now_s: float) -> Iterator[int]:
        def load(index: int) -> float:
            worker_id = live[index]
            return self._state.queues.of(worker_id, now_s) / self._state.table.speed(worker_id)

        for _ in range(_MOST_PAIRS):
            yield from sorted(self._rng.sample(range(len(live)), min(2, len(live))), key=load)


def _request_of(owner: str | None) -> GenerateRequest | None:
    if owner is None:
        return None
    key, key_id = bytes(32), bytes(16)
    grant = MemoryGrant(owner, key, key, key, key_id, key_id, shared_tokens=0, save=True)
    return GenerateRequest("simulated", (1,), 1, tenant=b"", memory=grant)
