"""Simulated workers: N requests run and Q wait, and all that run share the engine's steps.

The one thing that is simulated of a worker is how fast its requests advance; no router is known here. Time is in
seconds of the simulation.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from app.messages.model_card import ModelCard
from app.messages.workers import WorkerFacts, WorkerReport

_CARD = ModelCard("simulated", "/models/simulated", None, "refuse")


@dataclass(slots=True)
class Job:
    """One request. `tokens`: of its output, still to come where it was moved from a lost worker."""

    number: int
    router: int
    owner: str | None
    tokens: int
    arrived_s: float
    all_tokens: int
    started_s: float = -1.0
    was_home: bool = False


class SimulatedWorker:
    """One worker. Every running request advances by `speed` / step time tokens a second."""

    def __init__(self, worker_id: str, speed: float, step_s: Sequence[float], waiting_places: int) -> None:
        """step_s: seconds of a step by running requests, from 0 to N."""
        self.worker_id = worker_id
        self.speed = speed
        self._step_s = step_s
        self._slots = len(step_s) - 1
        self.places = self._slots + waiting_places
        self._progress = 0.0  # tokens that a request running since the beginning would have
        self._at_s = 0.0
        self._admitted = 0
        self._running: list[tuple[float, int, Job]] = []
        self._waiting: deque[Job] = deque()
        self.version = 0
        """Changes whenever `next_end_s` does."""
        self.facts = WorkerFacts(
            node=worker_id,
            pid=1,
            model=_CARD,
            speed=speed,
            cpus=(0,),
            numa_node=0,
            memory_bound=True,
            max_context_tokens=1 << 20,
            tier="scalar",
            arithmetic="",
            ready_since=0,
            max_running=self._slots,
            max_waiting=waiting_places,
            max_saved_bytes=None,
        )

    def length(self) -> int:
        """Requests running and waiting."""
        return len(self._running) + len(self._waiting)

    def report(self, now_s: float) -> WorkerReport:
        return WorkerReport(now_s + 1.0, len(self._running), len(self._waiting), 0, 0, admitted=self._admitted)

    def add(self, job: Job, now_s: float) -> bool:
        """Takes a request; False: it has no place."""
        if self.length() >= self.places:
            return False
        self._advance(now_s)
        self._waiting.append(job)
        self._fill(now_s)
        return True

    def next_end_s(self) -> float | None:
        """When the next request ends, if no other one comes."""
        if not self._running:
            return None
        left = max(0.0, self._running[0][0] - self._progress)
        return self._at_s + left * self._step_s[len(self._running)] / self.speed

    def end_next(self, now_s: float) -> Job:
        self._advance(now_s)
        job = heapq.heappop(self._running)[2]
        self._fill(now_s)
        return job

    def lose(self, now_s: float) -> list[Job]:
        """The worker dies. Returns its requests, with the tokens that are still to come."""
        self._advance(now_s)
        for end, _, job in self._running:
            job.tokens = max(1, round(end - self._progress))
        lost = [job for _, _, job in self._running] + list(self._waiting)
        self._running.clear()
        self._waiting.clear()
        self.version += 1
        return lost

    def _advance(self, now_s: float) -> None:
        if self._running:
            self._progress += (now_s - self._at_s) * self.speed / self._step_s[len(self._running)]
        self._at_s = now_s

    def _fill(self, now_s: float) -> None:
        while self._waiting and len(self._running) < self._slots:
            job = self._waiting.popleft()
            if job.started_s < 0:
                job.started_s = now_s
            self._admitted += 1
            heapq.heappush(self._running, (self._progress + job.tokens, job.number, job))
        self.version += 1
