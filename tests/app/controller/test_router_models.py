"""The router during a rolling change: workers of two versions of a model, and requests that were planned for either."""

import asyncio
import gc
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest

from app.controller.router import WorkerRouter
from app.messages.failures import ModelReplacedError, NoWorkerError
from app.messages.requests import ContextWindow, GenerateRequest
from tests.app.controller.routing import FakeReplica, new_router

OLD = GenerateRequest("r", (1, 2, 3), 10, tenant=b"", model_identity="old")
NEW = replace(OLD, model_identity="new")


def pending(request: GenerateRequest) -> PendingRequest:
    metadata = RequestMetadata(request_id="r", internal_request_id="http-1")
    return PendingRequest(args=[request, "ingress"], kwargs={}, metadata=metadata)


async def send(router: WorkerRouter, request: GenerateRequest) -> FakeReplica:
    """One request, which never completes."""
    replica = await asyncio.wait_for(router._choose_replica_for_request(pending(request)), 60)
    router.on_send_request(replica.replica_id)
    assert isinstance(replica, FakeReplica)
    replica.queue_length += 1
    return replica


def identity(replica: FakeReplica) -> str:
    return str(replica.replica_metadata["model"]["identity"])


def set_workers(router: WorkerRouter, *replicas: FakeReplica) -> None:
    router.update_replicas(list(replicas))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["SHORTEST_QUEUE", "LOTTERY"])
async def test_a_request_goes_to_workers_of_its_model_only(policy: str) -> None:
    slow, fast = FakeReplica("a", 1.0, identity="old"), FakeReplica("b", 1000.0, identity="new")
    router = new_router(slow, fast, policy=policy)
    assert {identity(await send(router, OLD)) for _ in range(30)} == {"old"}
    assert {identity(await send(router, NEW)) for _ in range(30)} == {"new"}
    any_model = {identity(await send(router, replace(OLD, model_identity=""))) for _ in range(30)}
    assert "new" in any_model


async def test_a_model_whose_newer_workers_run_another_is_replaced() -> None:
    old, new = FakeReplica("a", 1.0, identity="old"), FakeReplica("b", 1.0, identity="new")
    router = new_router(old)
    with pytest.raises(NoWorkerError) as not_yet:
        await send(router, NEW)  # of an ingress that is newer than the workers
    assert not isinstance(not_yet.value, ModelReplacedError)
    set_workers(router, old, new)
    await send(router, OLD)
    set_workers(router, new)
    with pytest.raises(ModelReplacedError, match="another version"):
        await send(router, OLD)
    await send(router, NEW)
    set_workers(router, old)  # the change is taken back
    await send(router, OLD)


async def test_a_shorter_context_is_another_version_for_who_needs_the_longer() -> None:
    long, short = (FakeReplica(f"{n}", 1.0, identity="old", max_context_tokens=n) for n in (99, 50))
    long.replica_metadata["speed"] = 0.001
    router = new_router(long, short)
    needs_more = replace(OLD, max_new_tokens=60)
    assert {(await send(router, needs_more)) for _ in range(9)} == {long}
    assert {(await send(router, OLD)) for _ in range(9)} == {short}
    set_workers(router, short)
    with pytest.raises(ModelReplacedError):
        await send(router, needs_more)
    assert await send(router, replace(needs_more, window=ContextWindow(40, 4, 8))) is short


@pytest.mark.parametrize("policy", ["SHORTEST_QUEUE", "LOTTERY"])
async def test_who_has_waited_longest_does_not_get_another_models_place(policy: str) -> None:
    """Requests of two models wait while all workers are full; then places are freed in a random order."""
    random = Random(11)
    replicas = [FakeReplica(f"{i}", 1.0 + i, 4, identity=("old", "new")[i % 2]) for i in range(4)]
    for replica in replicas:
        replica.queue_length = 3
    router = new_router(*replicas, policy=policy)

    async def one(number: int) -> tuple[str, str]:
        wanted = random.choice([OLD, NEW])
        await asyncio.sleep(random.uniform(0, 0.02))
        while True:
            try:
                replica = await router._choose_replica_for_request(pending(wanted))
            except Exception as error:
                assert "full" in str(error)  # noqa: PT017
                await asyncio.sleep(random.uniform(0, 0.005))
                continue
            break
        assert isinstance(replica, FakeReplica)
        router.on_send_request(replica.replica_id)
        replica.queue_length += 1
        await asyncio.sleep(random.uniform(0, 0.003))
        replica.queue_length -= 1
        router.decrement_queue_len_cache(replica.replica_id)
        router.on_request_completed(replica.replica_id, "http-1")
        return wanted.model_identity, identity(replica)

    async with asyncio.timeout(120):
        pairs = Counter(await asyncio.gather(*(one(number) for number in range(300))))
    assert set(pairs) == {("old", "old"), ("new", "new")}
    assert sum(pairs.values()) == 300
    gc.collect()
    assert not router._pending_requests_to_fulfill
    assert router._pending_requests_by_id == {}


async def test_waiting_requests_keep_their_order_when_a_place_is_not_for_them() -> None:
    router = new_router()
    old, new = FakeReplica("a", 1.0, identity="old"), FakeReplica("b", 1.0, identity="new")
    waiting = [pending(one) for one in (OLD, OLD, NEW, OLD, NEW)]
    router._pending_requests_to_fulfill.extend(waiting)
    router._table.update({}, 0.0)
    set_workers(router, old, new)
    router._fulfill_next_pending_request(new, waiting[0].metadata)  # type: ignore[arg-type]
    assert [one.future.done() for one in waiting] == [False, False, True, False, False]
    router._fulfill_next_pending_request(old, waiting[2].metadata)  # type: ignore[arg-type]
    assert [one.future.done() for one in waiting] == [True, False, True, False, False]
    for _ in range(3):
        router._fulfill_next_pending_request(new, waiting[2].metadata)  # type: ignore[arg-type]
    assert [one.future.done() for one in waiting] == [True, False, True, False, True]
    assert list(router._pending_requests_to_fulfill) == [waiting[1], waiting[3]]


@pytest.mark.parametrize("policy", ["SHORTEST_QUEUE", "LOTTERY"])
async def test_an_answer_goes_on_with_a_worker_that_computes_alike(policy: str) -> None:
    alike = FakeReplica("slow", 1.0, 30, arithmetic="avx2 int8")
    router = new_router(FakeReplica("fast", 1000.0, arithmetic="amx int8"), alike, policy=policy)
    resumed = replace(OLD, model_identity="", resumed_token_ids=(5, 6), resumed_arithmetic="avx2 int8")
    assert {(await send(router, resumed)) for _ in range(30)} == {alike}
    assert (await send(router, resumed)).replica_id.unique_id == "fast"  # better than none
    assert (await send(router, replace(resumed, resumed_arithmetic="scalar"))).replica_id.unique_id == "fast"
