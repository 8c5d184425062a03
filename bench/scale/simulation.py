"""One simulated service: requests arrive at random, routers place them, workers compute, reports arrive late.

Events in the order of their time, from one seed: the same scenario gives the same figures. Arrivals have random numbers
of their own, so that all policies get the same requests. Serve's controller asks a worker at a tick of its loop, once
its report is due, and hears and broadcasts the answer at the next tick, as Ray 2.60 does. What is not simulated: the
network, prompts apart from answers, the fair queue of the engine, and the processor time of routers.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

import numpy as np

from app.controller.policies import home_of
from app.messages.workers import WorkerFacts, WorkerReport
from bench.scale.fleet import Job, SimulatedWorker
from bench.scale.routers import SimulatedRouter
from bench.scale.workload import Lengths, requests_per_s, step_times_s

SPEEDS: Final = ("equal", "two", "wide")
"""Workers' speeds: equal within 2 %; half of them twice as fast; from a quarter to four times."""
_TICK_S: Final = 0.5
"""RAY_SERVE_CONTROL_LOOP_INTERVAL_S, as `app.launch.ray_environment` sets it."""
_LONGEST_STEP: Final = 1.1
"""A tick comes later by what the controller's work takes, up to a tenth here."""
_JITTER: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to simulate."""

    policy: str
    workers: int
    routers: int = 1
    load: float = 0.8
    """Load as a share of what all workers can serve."""
    report_period_s: float = 1.0
    """A worker's report is due after that time."""
    speeds: str = "equal"
    slots: int = 32
    waiting_places: int = 64
    users: int = 0
    """Users with saved pages, each of whom has a home; 0: none."""
    lose_at_s: float | None = None
    """One worker dies then."""
    warm_up_s: float = 200.0
    measured_s: float = 60.0
    seed: int = 1


@dataclass(slots=True)
class _Counts:
    arrived: int = 0
    ended: int = 0
    refused: int = 0
    refused_in_vain: int = 0
    moved: int = 0
    at_home: int = 0
    waits_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)


class Simulation:
    """Runs one scenario to the end of all its requests."""

    def __init__(self, scenario: Scenario, lengths: Lengths) -> None:
        self._scenario = scenario
        self._lengths = lengths
        self._rng = Random(scenario.seed)
        self._arrivals = Random(f"arrivals {scenario.seed}")
        step_s = step_times_s(lengths, scenario.slots)
        speeds = _speeds(scenario, self._rng)
        names = [f"{self._rng.getrandbits(64):016x}" for _ in speeds]
        self._fleet = {
            name: SimulatedWorker(name, speed, step_s, scenario.waiting_places)
            for name, speed in zip(names, speeds, strict=True)
        }
        self._owners = [f"{self._rng.getrandbits(128):032x}" for _ in range(scenario.users)]
        self._homes: dict[str, str] = {}
        self._said: dict[str, tuple[WorkerFacts, WorkerReport | None]] = {
            name: (worker.facts, worker.report(0.0)) for name, worker in self._fleet.items()
        }
        self._due_s = {name: self._rng.random() * scenario.report_period_s for name in names}
        self._answers: dict[str, WorkerReport] = {}
        """Answers of the workers that were probed at the last tick."""
        expiration_s = max(10.0, 3 * scenario.report_period_s)
        self._routers = [
            SimulatedRouter(
                scenario.policy,
                list(self._fleet.values()),
                seed=self._rng.getrandbits(32),
                expiration_s=expiration_s,
                report_period_s=scenario.report_period_s,
            )
            for _ in range(scenario.routers)
        ]
        self._per_s = scenario.load * sum(speeds) * requests_per_s(lengths, scenario.slots)
        self._until_s = scenario.warm_up_s + scenario.measured_s
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._numbers = count()
        self._counts = _Counts()

    def run(self) -> dict[str, Any]:
        """The figures, of the requests that arrived after the warm-up."""
        scenario = self._scenario
        for router in self._routers:
            router.update(self._said, 0.0)
        self._at(_TICK_S, self._tick)
        self._at(self._arrivals.expovariate(self._per_s), self._arrive)
        self._at(scenario.warm_up_s, self._begin)
        if scenario.lose_at_s is not None:
            self._at(scenario.lose_at_s, self._lose)
        while self._events:
            now_s, _, act, arguments = heapq.heappop(self._events)
            act(now_s, *arguments)
        return self._figures()

    def _at(self, time_s: float, act: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act, arguments))

    def _goes_on(self, now_s: float) -> bool:
        return now_s < self._until_s or any(worker.length() for worker in self._fleet.values())

    def _arrive(self, now_s: float) -> None:
        rng = self._arrivals
        _, tokens = rng.choice(self._lengths.pairs)
        owner = rng.choice(self._owners) if self._owners else None
        job = Job(next(self._numbers), rng.randrange(len(self._routers)), owner, tokens, now_s, tokens)
        self._place(job, now_s)
        following_s = now_s + rng.expovariate(self._per_s)
        if following_s < self._until_s:
            self._at(following_s, self._arrive)

    def _place(self, job: Job, now_s: float) -> None:
        is_measured = job.arrived_s >= self._scenario.warm_up_s
        self._counts.arrived += is_measured and job.arrived_s == now_s
        worker = self._routers[job.router].send(job, now_s)
        if worker is None:
            self._counts.refused += is_measured
            self._counts.refused_in_vain += is_measured and any(
                one.length() < one.places for name, one in self._fleet.items() if name in self._said
            )
            return
        if job.owner is not None:
            job.was_home = self._home_of(job.owner) == worker.worker_id
        self._plan_end(worker)

    def _home_of(self, owner: str) -> str:
        if (home := self._homes.get(owner)) is None:
            names = list(self._said)
            speeds = [self._fleet[name].speed for name in names]
            home = self._homes[owner] = names[home_of(owner, names, speeds)]
        return home

    def _plan_end(self, worker: SimulatedWorker) -> None:
        if (end_s := worker.next_end_s()) is not None:
            self._at(end_s, self._end, worker, worker.version)

    def _end(self, now_s: float, worker: SimulatedWorker, version: int) -> None:
        if version != worker.version:  # another request came or went since this was planned
            return
        job = worker.end_next(now_s)
        self._routers[job.router].ended(worker.worker_id)
        self._plan_end(worker)
        if job.arrived_s >= self._scenario.warm_up_s:
            counts = self._counts
            counts.ended += 1
            counts.at_home += job.was_home
            counts.waits_s.append(job.started_s - job.arrived_s)
            counts.token_s.append((now_s - job.arrived_s) / job.all_tokens)

    def _tick(self, now_s: float) -> None:
        """Serve's controller takes the answers, asks whose reports are due, and broadcasts what is new."""
        if not self._goes_on(now_s):
            return
        heard = {name: report for name, report in self._answers.items() if name in self._said}
        for name, report in heard.items():
            self._said[name] = (self._fleet[name].facts, report)
        due = [name for name in self._said if self._due_s[name] <= now_s]
        self._answers = {name: self._fleet[name].report(now_s) for name in due}
        for name in due:
            self._due_s[name] = now_s + self._scenario.report_period_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        if heard:
            for router in self._routers:
                router.update(self._said, now_s)
        self._at(now_s + _TICK_S * self._rng.uniform(1.0, _LONGEST_STEP), self._tick)

    def _begin(self, now_s: float) -> None:
        """The warm-up is over."""
        for router in self._routers:
            router.asked = router.rejected = 0
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        """How unequal the workers are, once a second."""
        loads = [one.length() / one.speed for name, one in self._fleet.items() if name in self._said]
        if mean := sum(loads) / len(loads):
            self._counts.imbalances.append(max(loads) / mean)
        if now_s + 1.0 < self._until_s:
            self._at(now_s + 1.0, self._look)

    def _lose(self, now_s: float) -> None:
        """The first worker dies; its requests go on elsewhere, as `app.controller.worker_client` makes them."""
        name, worker = next(iter(self._fleet.items()))
        del self._said[name]
        self._homes = {owner: home for owner, home in self._homes.items() if home != name}
        lost = worker.lose(now_s)
        for router in self._routers:
            router.lost(name)
        for job in lost:
            self._counts.moved += 1
            self._routers[job.router].ended(name)
            self._place(job, now_s)

    def _figures(self) -> dict[str, Any]:
        counts = self._counts
        arrived = max(1, counts.arrived)
        figures: dict[str, Any] = {
            "requests": counts.arrived,
            "ended": counts.ended,
            "refused": counts.refused,
            "refused_although_room": counts.refused_in_vain,
            "token_s": _percentiles(counts.token_s),
            "wait_s": _percentiles(counts.waits_s),
            "imbalance": round(float(np.mean(counts.imbalances)), 2) if counts.imbalances else None,
            "asked_per_request": round(sum(router.asked for router in self._routers) / arrived, 3),
            "rejected_per_request": round(sum(router.rejected for router in self._routers) / arrived, 4),
        }
        if self._owners:
            figures |= {"at_home": round(counts.at_home / max(1, counts.ended), 4)}
        if self._scenario.lose_at_s is not None:
            figures |= {"moved": counts.moved}
        return figures


def _speeds(scenario: Scenario, rng: Random) -> list[float]:
    """Relative speeds, as warm-ups measure them: 2 % of noise."""
    kinds: dict[str, Callable[[int], float]] = {
        "equal": lambda _: 1.0,
        "two": lambda index: 1.0 + index % 2,
        "wide": lambda _: float(4 ** rng.uniform(-1, 1)),
    }
    return [kinds[scenario.speeds](index) * rng.uniform(0.98, 1.02) for index in range(scenario.workers)]


def _percentiles(samples: list[float]) -> dict[str, float]:
    values = np.percentile(samples, (50, 95, 99)) if samples else (0.0, 0.0, 0.0)
    return {name: round(float(value), 4) for name, value in zip(("p50", "p95", "p99"), values, strict=True)}
