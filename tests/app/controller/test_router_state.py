import random
from dataclasses import replace

from app.controller.router_state import MOST_ASKED, RouterState
from app.controller.worker_table import WorkerTable
from app.messages.workers import WorkerReport
from tests.app.controller.test_worker_table import FACTS


def state(policy: str = "SHORTEST_QUEUE") -> RouterState:
    table = WorkerTable(expiration_s=10.0, forget_after_s=60.0)
    return RouterState(policy=policy, table=table, rng=random.Random(1))


def test_nobody_is_preferred_without_workers() -> None:
    assert state().order([], None, 0.0) == []
    assert state("LOTTERY").order([], None, 0.0) == []


def test_a_single_router_takes_the_least_queue_over_speed_always() -> None:
    """Also while reports come, which are older than what it has sent."""
    router, rng = state(), random.Random(2)
    speeds = {"a": 10.0, "b": 30.0, "c": 60.0}
    lengths, admitted = dict.fromkeys(speeds, 0), dict.fromkeys(speeds, 0)
    workers = {name: (replace(FACTS, speed=speed), WorkerReport(0.0, 0, 0, 8, 8)) for name, speed in speeds.items()}
    router.update(workers, 0.0)
    for step in range(2_000):
        if step % 50 == 0:
            for name, (facts, _) in workers.items():
                report = WorkerReport(1.0 + step, lengths[name], 0, 8, 8, admitted=admitted[name])
                workers[name] = facts, report
        if step % 50 == 30:
            router.update(workers, 0.0)
        name = rng.choice(list(speeds))
        if rng.random() < 0.4 and lengths[name]:
            lengths[name] -= 1
            router.queues.ended(name)
            continue
        chosen = list(speeds)[router.order(list(speeds), None, 0.0)[0]]
        waits = {name: lengths[name] / speed for name, speed in speeds.items()}
        assert waits[chosen] == min(waits.values())
        lengths[chosen] += 1
        admitted[chosen] += 1
        router.queues.sent(chosen)


def test_workers_with_room_are_candidates_and_some_that_are_full() -> None:
    router = state()
    names = [f"{number}" for number in range(100)]
    router.update({name: (FACTS, WorkerReport(1.0, 6 if name != "70" else 5, 0, 8, 8)) for name in names}, 0.0)
    candidates = list(router.candidates(names, lambda i: router.queues.of(names[i], 0.0) >= 6, None, 0.0))
    assert candidates[0] == 70
    assert len(candidates) == 1 + MOST_ASKED
