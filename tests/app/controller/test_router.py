"""The router in Serve's own routing machinery, with replicas that only count; no cluster."""

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID

from app.controller.router import WorkerRouter
from app.messages.failures import NoWorkerError, QueueFullError
from app.messages.memory import MemoryGrant
from app.messages.requests import GenerateRequest, Priority
from tests.app.controller.routing import DEPLOYMENT, FakeReplica, all_asked, new_router


class Clock:
    """Time of the router, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("app.controller.router.monotonic", lambda: self.now_s)


MakeRouter = Callable[..., WorkerRouter]


@pytest.fixture
def make_router() -> MakeRouter:
    return new_router


def request(internal_id: str = "http-1") -> PendingRequest:
    metadata = RequestMetadata(request_id="r", internal_request_id=internal_id)
    return PendingRequest(args=[], kwargs={}, metadata=metadata)


def request_of(owner: str) -> PendingRequest:
    """A request with a grant to the owner's saved pages, as `app.controller.worker_client` sends it."""
    key, key_id = bytes(32), bytes(16)
    grant = MemoryGrant(owner, key, key, key, key_id, key_id, shared_tokens=0, save=True)
    pending = request()
    pending.args = [GenerateRequest("r", (1,), 1, tenant=b"", memory=grant), "ingress"]
    return pending


async def send(router: WorkerRouter, owner: str | None = None) -> str:
    """One request, as Serve's AsyncioRouter does it; it never completes. Returns the worker's name."""
    pending = request() if owner is None else request_of(owner)
    replica = await asyncio.wait_for(router._choose_replica_for_request(pending), 60)
    router.on_send_request(replica.replica_id)
    assert isinstance(replica, FakeReplica)
    replica.queue_length += 1
    return str(replica.replica_id.unique_id)


async def test_lottery_through_serve_has_the_right_distribution(make_router: MakeRouter) -> None:
    speeds = {"a": 10.0, "b": 30.0, "c": 60.0}
    replicas = [FakeReplica(name, speed) for name, speed in speeds.items()]
    replicas[2].queue_length = 50_000  # Serve, left to itself, would take the shortest queue
    router = make_router(*replicas, policy="LOTTERY")
    counts = Counter([await send(router) for _ in range(3_000)])
    expected = {name: 3_000 * speed / 100 for name, speed in speeds.items()}
    chi_square = sum((counts[name] - n) ** 2 / n for name, n in expected.items())
    assert chi_square < 13.82  # two degrees of freedom; one in 1000 right ones is above


async def test_shortest_queue_through_serve_is_exact(make_router: MakeRouter) -> None:
    router = make_router(FakeReplica("a", 10.0), FakeReplica("b", 30.0), FakeReplica("c", 60.0))
    counts = Counter([await send(router) for _ in range(1_000)])
    assert counts == {"a": 100, "b": 300, "c": 600}


async def test_a_choice_counts_at_once(make_router: MakeRouter) -> None:
    router = make_router(FakeReplica("a", 10.0), FakeReplica("b", 10.0))
    # All are chosen before any is sent.
    chosen = await asyncio.gather(*(router._choose_replica_for_request(request()) for _ in range(10)))
    assert Counter(replica.replica_id.unique_id for replica in chosen) == {"a": 5, "b": 5}


def complete(router: WorkerRouter, replica: FakeReplica) -> None:
    """One of the worker's requests ends, as Serve tells the router."""
    replica.queue_length -= 1
    router.decrement_queue_len_cache(replica.replica_id)
    router.on_request_completed(replica.replica_id, "r")


OWNERS = [f"{number:032x}" for number in range(40)]


@pytest.mark.parametrize("policy", ["SHORTEST_QUEUE", "LOTTERY"])
async def test_a_users_requests_stay_at_one_worker(policy: str, make_router: MakeRouter) -> None:
    replicas = {name: FakeReplica(name, speed) for name, speed in {"a": 20.0, "b": 30.0, "c": 25.0}.items()}
    router, other = (make_router(*replicas.values(), policy=policy) for _ in range(2))

    async def home(router: WorkerRouter, owner: str) -> str:
        name = await send(router, owner)
        complete(router, replicas[name])
        return name

    homes = {owner: await home(router, owner) for owner in OWNERS}
    assert set(homes.values()) == {"a", "b", "c"}
    for _ in range(5):
        assert {owner: await home(router, owner) for owner in OWNERS} == homes
    assert {owner: await home(other, owner) for owner in OWNERS} == homes  # another ingress agrees
    router.update_replicas([replicas["a"], replicas["b"]])  # type: ignore[list-item]
    after = {owner: await home(router, owner) for owner in OWNERS}
    assert all(after[owner] == name for owner, name in homes.items() if name != "c")
    router.update_replicas(list(replicas.values()))  # type: ignore[arg-type]
    assert {owner: await home(router, owner) for owner in OWNERS} == homes


@pytest.mark.parametrize("policy", ["SHORTEST_QUEUE", "LOTTERY"])
async def test_an_overloaded_home_sends_its_users_to_others(policy: str, make_router: MakeRouter) -> None:
    """Requests of one user that never end: the worker that is not the user's home gets its share too.

    An overloaded home leaves the choice to the policy: the lottery may still draw it.
    """
    router = make_router(FakeReplica("a", 10.0), FakeReplica("b", 10.0), policy=policy)
    counts = Counter([await send(router, OWNERS[0]) for _ in range(100)])
    least = counts.most_common()[-1][1]
    assert len(counts) == 2
    assert least >= (38 if policy == "SHORTEST_QUEUE" else 30)


async def test_a_full_home_is_passed_over(make_router: MakeRouter) -> None:
    router = make_router(*(FakeReplica(name, 10.0, max_ongoing_requests=1) for name in "ab"), policy="LOTTERY")
    assert {await send(router, OWNERS[0]), await send(router, OWNERS[0])} == {"a", "b"}


async def test_queue_length_goes_up_and_down(make_router: MakeRouter) -> None:
    router = make_router(FakeReplica("a", 10.0))
    for _ in range(3):
        await send(router)
    assert router.rows()[0].queue_length == 3
    replica_id = ReplicaID(unique_id="a", deployment_id=DEPLOYMENT)
    for _ in range(3):
        router.decrement_queue_len_cache(replica_id)  # Serve calls both when a request ends
        router.on_request_completed(replica_id, "r")
    assert router.rows()[0].queue_length == 0


def line() -> PendingRequest:
    """A request of a batch."""
    pending = request()
    pending.args = [GenerateRequest("r", (1,), 1, tenant=b"", priority=Priority.BATCH), "ingress"]
    return pending


async def test_batches_lengthen_no_queue_of_others_and_go_where_the_least_is(make_router: MakeRouter) -> None:
    batch, chats = FakeReplica("a", 10.0), FakeReplica("b", 10.0)
    router = make_router(batch, chats)
    batch.report(1.0, running=1, batch=20)
    chats.report(1.0, running=2)
    router.update_replicas([batch, chats])  # type: ignore[list-item]
    pending = request_of(OWNERS[0])
    pending.args[0] = replace(pending.args[0], memory=None)
    assert (await router._choose_replica_for_request(pending)).replica_id == batch.replica_id
    assert (await router._choose_replica_for_request(line())).replica_id == chats.replica_id


async def test_a_batch_gets_none_of_the_last_places(make_router: MakeRouter) -> None:
    replica = FakeReplica("a", 10.0, max_ongoing_requests=3)
    router = make_router(replica)
    for _ in range(2):
        await send(router)
    with pytest.raises(QueueFullError, match="busy with others"):
        await router._choose_replica_for_request(line())
    complete(router, replica)
    assert (await router._choose_replica_for_request(line())).replica_id == replica.replica_id


async def test_a_chat_waits_for_the_place_that_a_batch_gives_back(make_router: MakeRouter) -> None:
    replica = FakeReplica("a", 10.0, max_ongoing_requests=2)
    replica.queue_length = 2
    router = make_router(replica)
    replica.report(1.0, running=1, batch=1)
    router.update_replicas([replica])  # type: ignore[list-item]
    chosen = asyncio.create_task(send(router))
    await all_asked([replica])
    assert not chosen.done()
    replica.queue_length = 1
    assert await chosen == "a"


async def test_requests_of_other_routers_count(make_router: MakeRouter) -> None:
    busy = FakeReplica("a", 10.0)
    busy.queue_length = 50
    router = make_router(busy, FakeReplica("b", 10.0))
    assert {await send(router) for _ in range(50)} == {"b"}


async def test_a_heartbeat_corrects_a_count_that_is_too_high(make_router: MakeRouter) -> None:
    worker = FakeReplica("a", 10.0)
    worker.queue_length = 5
    router = make_router(worker)
    for _ in range(2):
        await send(router)
    assert router.rows()[0].queue_length == 7
    worker.report(1.0, running=3)
    router.update_replicas([worker])  # type: ignore[list-item]
    assert router.rows()[0].queue_length == 3
    worker.report(2.0, running=0)  # made before the two were sent
    router.update_replicas([worker])  # type: ignore[list-item]
    assert router.rows()[0].queue_length == 2


async def test_choices_of_one_http_request_do_not_wait_for_each_other(make_router: MakeRouter) -> None:
    router = make_router(FakeReplica("a", 10.0))
    chosen = await asyncio.wait_for(
        asyncio.gather(*(router._choose_replica_for_request(request("same")) for _ in range(8))), 60
    )
    assert len(chosen) == 8


async def test_a_full_worker_is_passed_over(make_router: MakeRouter) -> None:
    fast, slow = FakeReplica("fast", 1000.0, max_ongoing_requests=2), FakeReplica("slow", 1.0)
    slow.queue_length = 5
    router = make_router(fast, slow)
    assert [await send(router) for _ in range(3)] == ["fast", "fast", "slow"]


async def test_when_all_are_full_a_request_is_refused(make_router: MakeRouter) -> None:
    replicas = [FakeReplica(name, 10.0, max_ongoing_requests=1) for name in "ab"]
    router = make_router(*replicas)
    assert {await send(router), await send(router)} == {"a", "b"}
    with pytest.raises(QueueFullError, match="Try again later"):
        await send(router)
    assert all(replica.probes for replica in replicas)  # it asked them, not only its memory
    replicas[1].queue_length = 0
    assert await send(router) == "b"


async def test_a_request_among_hundreds_of_full_workers_does_not_ask_them_all(make_router: MakeRouter) -> None:
    replicas = [FakeReplica(f"{i:03}", 10.0, max_ongoing_requests=1) for i in range(300)]
    for replica in replicas:
        replica.queue_length = 1
        replica.report(1.0, running=1)
    router = make_router(*replicas)
    await all_asked(replicas)
    probes = sum(replica.probes for replica in replicas)
    with pytest.raises(QueueFullError, match="Try again later"):
        await send(router)
    assert sum(replica.probes for replica in replicas) - probes <= 32
    replicas[200].queue_length = 0
    replicas[200].report(2.0)
    router.update_replicas(replicas)  # type: ignore[arg-type]
    assert await send(router) == "200"


async def test_workers_that_others_have_filled_are_asked_and_sent_nothing(make_router: MakeRouter) -> None:
    replicas = [FakeReplica(f"{i:03}", 10.0, max_ongoing_requests=2) for i in range(40)]
    router = make_router(*replicas)  # which has heard that they are idle
    await all_asked(replicas)
    for replica in replicas:
        replica.queue_length = 2
        replica.report(1.0, running=2)
    router.update_replicas(replicas)  # type: ignore[arg-type]
    probes = sum(replica.probes for replica in replicas)
    with pytest.raises(QueueFullError):
        await send(router)
    assert sum(replica.probes for replica in replicas) - probes == 32


def reject(router: WorkerRouter, replica: FakeReplica) -> None:
    """A worker sends a request back, as Serve tells the router of it. (`send` is its first part.)"""
    router.on_send_request(replica.replica_id)
    router.on_new_queue_len_info(replica.replica_id, replica.queue_length)
    router.on_request_completed(replica.replica_id, "r")


async def test_workers_that_send_requests_back_are_full(make_router: MakeRouter) -> None:
    replicas = [FakeReplica(f"{i:03}", 10.0, max_ongoing_requests=6) for i in range(60)]
    router = make_router(*replicas)
    await all_asked(replicas)
    for replica in replicas:
        replica.queue_length = 6  # of other routers
        reject(router, replica)
        assert router._queues.of(replica.replica_id.unique_id, time.monotonic()) == 6
    probes = sum(replica.probes for replica in replicas)
    with pytest.raises(QueueFullError):
        await send(router)
    assert sum(replica.probes for replica in replicas) - probes == 32
    for replica in replicas:
        replica.queue_length = 5
        replica.report(1.0, running=5)
    router.update_replicas(replicas)  # type: ignore[arg-type]
    assert len({await send(router) for _ in range(60)}) == 60


async def test_a_worker_that_reports_that_it_is_full_is_asked_first(make_router: MakeRouter) -> None:
    """Its report may be older than the end of a request of this router, or others may have taken that place."""
    replica = FakeReplica("a", 10.0, max_ongoing_requests=3)
    router = make_router(replica)
    for _ in range(2):
        await send(router)
    complete(router, replica)
    replica.queue_length = 3  # of other routers, two
    replica.report(1.0, running=3)
    router.update_replicas([replica])  # type: ignore[list-item]
    with pytest.raises(QueueFullError):
        await send(router)
    replica.queue_length = 2
    assert await send(router) == "a"


async def test_what_serve_asks_workers_itself_counts_too(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    replica = FakeReplica("a", 10.0, max_ongoing_requests=3)
    replica.queue_length = 2  # of other routers
    router = make_router(replica)
    await send(router)
    clock.now_s += 9
    replica.queue_length = 2  # one of them has ended
    assert await send(router) == "a"  # which was full by what was known
    assert router.rows()[0].queue_length == 3
    clock.now_s += 9
    assert router.rows()[0].state == "alive", "it has answered nine seconds ago"


async def test_a_request_whose_workers_report_but_cannot_be_reached_does_not_wait_for_ever(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.controller.router._LONGEST_SEARCH_S", 0.3)
    replicas = [FakeReplica(name, 10.0) for name in "abc"]
    for replica in replicas:
        replica.answers = False
    router = make_router(*replicas)
    router.max_queue_len_response_deadline_s = 0.1
    for replica in replicas:
        router.on_replica_actor_unavailable(replica.replica_id)  # so that they are asked first
    began_s = time.monotonic()
    with pytest.raises(NoWorkerError):
        await send(router)
    assert 0.3 <= time.monotonic() - began_s < 60


async def test_a_silent_worker_is_asked_once_at_a_time(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    silent, other = FakeReplica("silent", 10.0), FakeReplica("other", 10.0)
    router = make_router(silent, other)
    await all_asked([silent, other])
    probes = silent.probes
    silent.answers = False
    clock.now_s += 11
    router.on_new_queue_len_info(other.replica_id, 0)
    tasks = len(asyncio.all_tasks())
    for _ in range(20):
        await router.choose_replicas([silent, other], None)  # type: ignore[list-item]
    assert len(asyncio.all_tasks()) == tasks + 1
    await asyncio.sleep(0.01)
    assert silent.probes == probes + 1


async def test_a_report_of_more_requests_counts_while_this_router_has_some_there(make_router: MakeRouter) -> None:
    one, two = FakeReplica("a", 10.0), FakeReplica("b", 10.0)
    router = make_router(one, two)
    assert sorted([await send(router), await send(router)]) == ["a", "b"]
    one.report(1.0, running=40)  # of which 39 are other routers'
    two.report(1.0, running=1)
    router.update_replicas([one, two])  # type: ignore[list-item]
    assert {row.worker_id: row.queue_length for row in router.rows()} == {"a": 40, "b": 1}
    assert {await send(router) for _ in range(20)} == {"b"}


class Prompt:
    """An argument of a request; stands for the prompt."""


async def prompt_after_refusal(router: WorkerRouter, error: type[Exception]) -> "weakref.ref[Prompt]":
    """Sends a request with a prompt, which is refused. Nobody here keeps the prompt."""
    prompt = Prompt()
    pending = PendingRequest(
        args=[prompt], kwargs={}, metadata=RequestMetadata(request_id="r", internal_request_id=f"{id(prompt)}")
    )
    with pytest.raises(error):
        await asyncio.wait_for(router._choose_replica_for_request(pending), 60)
    return weakref.ref(prompt)


@pytest.mark.parametrize(("places", "error"), [(1, QueueFullError), (None, NoWorkerError)])
async def test_a_refused_request_is_not_kept(
    places: int | None, error: type[Exception], make_router: MakeRouter
) -> None:
    """Neither when every queue is full, nor when the last worker is lost while the request waits."""
    if places is None:
        router = make_router()
        asyncio.get_running_loop().call_later(0.05, router.update_replicas, [])
    else:
        router = make_router(FakeReplica("a", 10.0, max_ongoing_requests=places))
        await send(router)
    prompts = [await prompt_after_refusal(router, error) for _ in range(20 if places else 1)]
    async with asyncio.timeout(60):
        while any(prompt() is not None for prompt in prompts):
            await asyncio.sleep(0.01)  # the routing tasks end
            gc.collect()
    assert router._pending_requests_by_id == {}


async def test_stale_workers_get_nothing_until_they_report(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    alive, silent = FakeReplica("alive", 1.0), FakeReplica("silent", 1000.0)
    silent.answers = False
    router = make_router(alive, silent)
    assert await send(router) == "silent"
    clock.now_s += 11
    alive.report(1.0)
    router.update_replicas([alive, silent])  # type: ignore[list-item]
    assert {await send(router) for _ in range(20)} == {"alive"}
    assert {row.worker_id: row.check_heart_beat for row in router.rows()} == {"alive": True, "silent": False}
    silent.report(1.0)
    router.update_replicas([alive, silent])  # type: ignore[list-item]
    assert await send(router) == "silent"


async def test_workers_outlive_a_controller_that_is_silent(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    router = make_router(FakeReplica("a", 1.0), FakeReplica("b", 1.0))
    clock.now_s += 100  # no broadcast for long, but the workers answer when they are asked
    assert await send(router) == "a"
    assert all(row.state == "alive" for row in router.rows())


async def test_no_worker_answers(make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.controller.router._PROBE_TIMEOUT_S", 0.01)
    clock = Clock(monkeypatch)
    silent = FakeReplica("silent", 1.0)
    router = make_router(silent)
    silent.answers = False
    clock.now_s += 11
    with pytest.raises(NoWorkerError):
        await send(router)


async def test_waiting_requests_fail_when_the_last_worker_dies(make_router: MakeRouter) -> None:
    replica = FakeReplica("a", 1.0)
    router = make_router(replica)
    pending = request()
    router._pending_requests_to_fulfill.append(pending)
    router._add_pending_request_to_indices(pending)
    router.on_replica_actor_died(replica.replica_id)
    with pytest.raises(NoWorkerError):
        await pending.future
    assert router.rows()[0].state == "gone"
    assert pending.metadata.internal_request_id not in router._pending_requests_by_id


async def test_the_table_is_cheap(make_router: MakeRouter) -> None:
    router = make_router(*(FakeReplica(str(i), 1.0 + i) for i in range(50)))

    def cost_s() -> float:
        start_s = time.thread_time()
        assert len(router.rows()) == 50
        return time.thread_time() - start_s

    assert min(cost_s() for _ in range(5)) < 0.1  # the collection of garbage may fall into one of them


async def test_a_worker_stands_still_if_it_is_silent_and_another_one_is_not(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.controller.router._PROBE_TIMEOUT_S", 0.01)
    clock = Clock(monkeypatch)
    stopped, other = FakeReplica("stopped", 1.0), FakeReplica("other", 1.0)
    router = make_router(stopped, other)
    stopped.answers = False
    assert not await router.stands_still("actor of stopped"), "it has reported a moment ago"
    clock.now_s += 11  # Serve's controller may be lost: nobody's reports come
    assert not await router.stands_still("actor of other"), "it answers"
    assert await router.stands_still("actor of stopped")
    assert not await router.stands_still("actor of somebody")
    clock.now_s += 11
    other.answers = False
    assert not await router.stands_still("actor of stopped"), "no other one could go on"
