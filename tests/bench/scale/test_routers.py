"""The simulated router and the service's, in Serve's own machinery, do the same in the same story."""

import asyncio
from random import Random

import pytest

from app.messages.failures import QueueFullError
from bench.scale.fleet import Job, SimulatedWorker
from bench.scale.routers import SimulatedRouter
from tests.app.controller.routing import FakeReplica, all_asked, new_router
from tests.app.controller.test_router import request

_PLACES = 6


class Story:
    """One fleet, which the simulated router uses, and the real router beside it sees as replicas."""

    def __init__(self, policy: str) -> None:
        self.rng = Random(11)
        speeds = [self.rng.uniform(50, 100) for _ in range(50)]
        self.workers = [
            SimulatedWorker(f"{number:02}", speed, [0.0] + [0.02] * _PLACES, waiting_places=0)
            for number, speed in enumerate(speeds)
        ]
        self.replicas = [FakeReplica(one.worker_id, one.speed, max_ongoing_requests=_PLACES) for one in self.workers]
        self.simulated = SimulatedRouter(policy, self.workers, seed=3, expiration_s=10.0)
        self.real = new_router(*self.replicas, policy=policy)
        self.own = [0] * len(speeds)
        self.rejected = 0
        self.numbers = iter(range(1_000_000))

    def new_job(self) -> Job:
        return Job(next(self.numbers), 0, None, 100, 0.0, 100)

    def take_over(self) -> None:
        """The replicas' true lengths are those of the workers."""
        for worker, replica in zip(self.workers, self.replicas, strict=True):
            replica.queue_length = worker.length()

    def report(self, beat: float) -> None:
        self.take_over()
        reports = {one.worker_id: (one.facts, one.report(beat)) for one in self.workers}
        self.simulated.update(reports, 0.0)
        for replica in self.replicas:
            replica.routing_stats = reports[replica.replica_id.unique_id][1].to_wire()
        self.real.update_replicas(self.replicas)  # type: ignore[arg-type]

    async def send(self) -> bool:
        """One request to both; whether it found a place."""
        self.take_over()
        worker = self.simulated.send(self.new_job(), 0.0)
        chosen = await self._send_to_real()
        assert chosen == (None if worker is None else worker.worker_id)
        if worker is None:
            return False
        self.own[self.workers.index(worker)] += 1
        return True

    async def _send_to_real(self) -> str | None:
        """As Serve's AsyncioRouter does it, with a worker's answer and another try after a rejection."""
        is_retry, pending = False, request(f"http-{next(self.numbers)}")
        while True:
            try:
                replica = await asyncio.wait_for(
                    self.real._choose_replica_for_request(pending, is_retry=is_retry), timeout=60
                )
            except QueueFullError:
                return None
            assert isinstance(replica, FakeReplica)
            self.real.on_send_request(replica.replica_id)
            is_accepted = replica.queue_length < _PLACES
            replica.queue_length += is_accepted
            self.real.on_new_queue_len_info(replica.replica_id, replica.queue_length)
            if is_accepted:
                return str(replica.replica_id.unique_id)
            self.rejected += 1
            self.real.on_request_completed(replica.replica_id, pending.metadata.internal_request_id)
            is_retry = True

    def end(self) -> None:
        """Some own request ends, at whatever worker it is."""
        index = self.rng.choices(range(len(self.own)), self.own)[0]
        worker, replica = self.workers[index], self.replicas[index]
        self.own[index] -= 1
        worker.end_next(0.0)
        self.simulated.ended(worker.worker_id)
        self.real.on_request_completed(replica.replica_id, "r")
        self.real.decrement_queue_len_cache(replica.replica_id)


@pytest.mark.parametrize("policy", ["LOTTERY", "SHORTEST_QUEUE"])
async def test_the_simulated_router_does_what_the_real_one_does(policy: str) -> None:
    """Through room, rejections by workers that others have filled, and refusals."""
    story = Story(policy)
    story.report(1.0)
    await all_asked(story.replicas)
    probes = sum(replica.probes for replica in story.replicas)
    found = []
    for step in range(600):
        if step % 60 == 59:
            story.report(2.0 + step)
        if step % 40 == 20:  # another router fills some workers
            for worker in story.rng.sample(story.workers, 15):
                worker.add(story.new_job(), 0.0)
        if step % 5 == 4 and any(story.own):
            story.end()
        found.append(await story.send())
    assert story.simulated.asked == sum(replica.probes for replica in story.replicas) - probes
    assert story.simulated.rejected == story.rejected > 0
    assert 100 < sum(found) < 600
    assert story.simulated.asked > 32
