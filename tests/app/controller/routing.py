"""A router in Serve's own routing machinery, and what it sees of a replica."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ray.serve._private.common import DeploymentHandleSource, DeploymentID
from ray.serve.request_router import ReplicaID

from app.controller.router import WorkerRouter, router_kwargs
from app.messages.model_card import ModelCard
from app.messages.workers import WorkerFacts, WorkerReport

DEPLOYMENT = DeploymentID(name="Worker", app_name="test")


class FakeReplica:
    """What a router sees of a replica. `answers`: whether it reacts to a probe."""

    def __init__(
        self,
        name: str,
        speed: float,
        max_ongoing_requests: int = 1_000_000,
        *,
        identity: str = "",
        arithmetic: str = "avx2 int8",
        max_context_tokens: int = 99,
    ) -> None:
        self.replica_id = ReplicaID(unique_id=name, deployment_id=DEPLOYMENT)
        self.max_ongoing_requests = max_ongoing_requests
        self.actor_id = SimpleNamespace(hex=lambda: f"actor of {name}")
        self.queue_length = 0
        self.probes = 0
        self.answers = True
        facts = WorkerFacts(
            node="n",
            pid=1,
            model=ModelCard("m", "/models/m", None, "refuse", identity=identity),
            speed=speed,
            cpus=(0,),
            numa_node=0,
            memory_bound=True,
            max_context_tokens=max_context_tokens,
            tier="avx2",
            arithmetic=arithmetic,
            ready_since=3,
            max_running=2,
            max_waiting=4,
            max_saved_bytes=None,
        )
        self.replica_metadata = facts.to_wire()
        self.routing_stats: dict[str, Any] = {}

    def report(self, heart_beat: float, running: int = 0, batch: int = 0) -> None:
        report = WorkerReport(
            heart_beat=heart_beat, running=running, waiting=0, kv_pages=1, kv_pages_free=1, batch=batch
        )
        self.routing_stats = report.to_wire()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        self.probes += 1
        if not self.answers:
            await asyncio.sleep(deadline_s * 2)
        return self.queue_length


def new_router(*replicas: FakeReplica, policy: str = "SHORTEST_QUEUE") -> WorkerRouter:
    """On the running loop."""
    router = WorkerRouter(  # type: ignore[no-untyped-call]
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
        initial_backoff_s=0.001,
        max_backoff_s=0.002,
    )
    kwargs = router_kwargs(policy=policy, expiration_s=10, forget_after_s=60, report_period_s=1, seed=3)
    router.initialize_state(**kwargs)
    for replica in replicas:
        router.on_new_queue_len_info(replica.replica_id, replica.queue_length)
    router.update_replicas(list(replicas))  # type: ignore[arg-type]
    return router


async def all_asked(replicas: Sequence[FakeReplica]) -> None:
    """Returns when the router has had an answer of each: Serve asks each of its new replicas, once."""
    async with asyncio.timeout(60):
        while not all(replica.probes for replica in replicas):
            await asyncio.sleep(0)
    for _ in range(10):  # the tasks that take the last answers
        await asyncio.sleep(0)
