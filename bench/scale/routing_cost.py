"""What the real router takes of its ingress' processor: a choice, a broadcast, a look at the table.

`app.controller.router.WorkerRouter` as Serve makes it, over objects that stand for replicas: no process, no message.
Serve's own share of a broadcast is measured apart, with its own class of a replica's description: its controller makes
all descriptions and pickles them, each router unpickles them. A description's parts come from different messages, so
that pickle finds no object twice. Processor time, so other programs count little.
"""

import asyncio
import pickle
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata, RunningReplicaInfo
from ray.serve.request_router import PendingRequest, ReplicaID

from app.controller.router import WorkerRouter, router_kwargs
from app.messages.capacity import WorkerCapacity
from app.messages.memory import MemoryGrant
from app.messages.requests import GenerateRequest
from app.messages.workers import WorkerReport
from bench.scale.fleet import SimulatedWorker

_DEPLOYMENT: Final = DeploymentID(name="Worker", app_name="simulated")
_SAMPLES: Final = 30
_CHANGED: Final = 0.5
"""Serve's controller broadcasts every half second here, and a worker reports once a second."""
_CORES: Final = 24
_CAPACITY: Final = WorkerCapacity(
    layers=22,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=64,
    layer_weights=968_884_224,
    layer_bytes=544_997_376,
    head_weights=65_536_000,
    head_bytes=36_864_000,
    other_bytes=0,
    kv_type="bf16",
    kv_tokens=65_536,
    memory_left_bytes=64 << 30,
    vendor="amd",
    prompt_tokens=512,
    prompt_s=1.5,
    token_s=0.013,
)
"""The 1.1B shape's, about; a message's size is what counts."""


def routing_costs(counts: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds at the median, by policy and number of workers."""
    return {
        policy: {str(count): asyncio.run(_costs(policy, count)) for count in counts}
        for policy in ("LOTTERY", "SHORTEST_QUEUE")
    }


async def _costs(policy: str, count: int) -> dict[str, float]:
    rng = random.Random(1)
    replicas = [_replica(f"{rng.getrandbits(64):016x}", rng) for _ in range(count)]
    router = WorkerRouter(  # type: ignore[no-untyped-call]
        deployment_id=_DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
    )
    kwargs = router_kwargs(policy=policy, expiration_s=10, forget_after_s=60, report_period_s=1, seed=1)
    router.initialize_state(**kwargs)
    beat = 0.0

    def broadcast() -> None:
        nonlocal beat
        beat += 1.0
        for replica in rng.sample(replicas, max(1, int(count * _CHANGED))):
            replica.routing_stats = _stats(beat, rng)

    for replica in replicas:
        replica.routing_stats = _stats(0.5, rng)
    router.update_replicas(replicas)
    costs = {
        "choice": await _choice(router, replicas, None),
        "choice_of_a_home": await _choice(router, replicas, "a" * 32),
    }
    costs["broadcast"] = _median_ms(lambda: router.update_replicas(replicas), before=broadcast)
    costs["places"] = _median_ms(router.places)
    costs["rows"] = _median_ms(router.rows)
    descriptions = pickle.dumps([_description(replica) for replica in replicas])
    costs["pickle_broadcast"] = _median_ms(lambda: pickle.dumps([_description(replica) for replica in replicas]))
    costs["unpickle_broadcast"] = _median_ms(lambda: pickle.loads(descriptions))
    costs["broadcast_kib"] = round(len(descriptions) / 1024, 1)
    await asyncio.sleep(0)
    return costs


async def _choice(router: WorkerRouter, replicas: list[Any], owner: str | None) -> float:
    times_s = []
    for _ in range(_SAMPLES):
        pending = PendingRequest(args=[_request(owner)], kwargs={}, metadata=RequestMetadata("r", "r"))
        start_s = time.thread_time()
        ranks = iter(await router.choose_replicas(replicas, pending))
        next(ranks)
        times_s.append(time.thread_time() - start_s)
    return round(statistics.median(times_s) * 1e3, 3)


def _median_ms(call: Callable[[], object], before: Callable[[], None] = lambda: None) -> float:
    times_s = []
    for _ in range(_SAMPLES):
        before()
        start_s = time.thread_time()
        call()
        times_s.append(time.thread_time() - start_s)
    return round(statistics.median(times_s) * 1e3, 3)


def _replica(name: str, rng: random.Random) -> Any:
    """A stand-in with the replica fields that the router reads."""

    async def get_queue_len(*, deadline_s: float) -> int:
        return 0

    facts = SimulatedWorker(name, rng.uniform(50, 100), [0.0] * 33, waiting_places=64).facts
    first = rng.randrange(8) * _CORES
    facts = replace(facts, cpus=tuple(range(first, first + _CORES)), capacity=_CAPACITY)
    return SimpleNamespace(
        replica_id=ReplicaID(unique_id=name, deployment_id=_DEPLOYMENT),
        max_ongoing_requests=96,
        node_id=f"{rng.getrandbits(224):056x}",
        replica_metadata=_received(facts.to_wire()),
        routing_stats={},
        get_queue_len=get_queue_len,
    )


def _stats(heart_beat: float, rng: random.Random) -> dict[str, Any]:
    report = WorkerReport(heart_beat, rng.randrange(32), 0, 100, 50, admitted=rng.randrange(1_000_000))
    return _received(report.to_wire())


def _received(message: dict[str, Any]) -> dict[str, Any]:
    """Copies a message as if it came from another process, so that messages share no objects."""
    received: dict[str, Any] = pickle.loads(pickle.dumps(message))
    return received


def _description(replica: Any) -> RunningReplicaInfo:
    return RunningReplicaInfo(
        replica_id=replica.replica_id,
        node_id=replica.node_id,
        node_ip="10.0.0.1",
        availability_zone=None,
        actor_name=f"SERVE_REPLICA::simulated#Worker#{replica.replica_id.unique_id}",
        max_ongoing_requests=96,
        routing_stats=replica.routing_stats,
        replica_metadata=replica.replica_metadata,
    )


def _request(owner: str | None) -> GenerateRequest:
    key, key_id = bytes(32), bytes(16)
    grant = None
    if owner is not None:
        grant = MemoryGrant(owner, key, key, key, key_id, key_id, shared_tokens=0, save=True)
    return GenerateRequest("simulated", (1,) * 100, 100, tenant=b"", memory=grant)
