"""The worker without Serve and without weights: admission, heartbeat, shutdown."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.model_runner import Batch, ModelRunner
from app.messages.bundle import Assembler, Part
from app.messages.direct_line import LINES_FOLDER, Lines
from app.messages.failures import EngineStoppedError, ModelReplacedError, PlaceWantedBackError, QueueFullError
from app.messages.outputs import PromptProgress, TokenDelta
from app.messages.requests import GenerateRequest, Priority, SamplingParams
from app.messages.workers import WorkerFacts, WorkerReport
from app.settings.applications import ModelApplicationSettings, parse_settings
from app.workers.core_claims import NoFreeCoresError
from app.workers.machine_memory import NoRoomError
from app.workers.numa import Slot
from app.workers.worker import Worker
from tests.fakes import FakeRunner
from tests.streams import with_the_loop

SETTINGS: dict[str, Any] = {
    "model": {"folder": "models/some-model"},
    "engine": {"max_step_tokens": 32, "prompt_chunk_tokens": 16},
    "worker": {
        "max_concurrent_requests": 2,
        "max_queued_requests": 1,
        "warm_up_prompt_tokens": 8,
        "warm_up_new_tokens": 2,
    },
}


VERSION = "v1"


class Model:
    """A model that computes only while `gate` is open, and fails while `broken`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.pace: Callable[[Batch], None] = lambda batch: None
        self.threads = 0
        self.options: dict[str, int] = {}

    def make(self, settings: ModelApplicationSettings, files: object, slot: Slot, threads: int) -> ModelRunner:
        self.threads = threads
        options = {"max_sequences": settings.worker.max_concurrent_requests} | self.options
        return FakeRunner(
            max_step_tokens=settings.engine.least_step_tokens,
            before_step=self.before_step,
            **options,  # type: ignore[arg-type]
        )

    def before_step(self, batch: Batch) -> None:
        self.gate.wait()
        self.pace(batch)
        if self.broken:
            raise RuntimeError("the model is broken")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The worker pins its thread: this test's thread is unpinned afterwards."""
    monkeypatch.setattr("app.workers.worker.session_folder", lambda name: tmp_path / name)
    monkeypatch.setattr("app.workers.worker.keep_on_loopback", lambda: None)
    monkeypatch.setattr("app.workers.worker.machines", lambda: 1)
    monkeypatch.setattr("app.workers.worker.own_actor", lambda: "actor")
    monkeypatch.setattr("app.workers.worker.own_deployment", lambda: ("app", VERSION))
    monkeypatch.setattr("app.workers.worker.mark_crashes", lambda folder, actor: None)  # of this process
    monkeypatch.setattr("app.workers.worker._CLAIM_TIMEOUT_S", 0.0)
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def worker(machine: None, model: Model) -> AsyncIterator[Worker]:
    worker = Worker(parse_settings(SETTINGS), model.make)
    yield worker
    model.gate.set()
    worker.__del__()


def request(name: str, new_tokens: int = 3) -> GenerateRequest:
    return GenerateRequest(name, (1, 2, 3), new_tokens, tenant=b"")


async def read(worker: Worker, name: str, new_tokens: int = 3) -> list[TokenDelta]:
    return [part.delta async for (part,) in worker.generate(request(name, new_tokens), reader=name)]


def report(worker: Worker) -> WorkerReport:
    return WorkerReport.from_wire(worker.record_routing_stats())


async def until_idle(worker: Worker) -> None:
    async with asyncio.timeout(60):
        while (now := report(worker)).running or now.waiting or now.kv_pages_free < now.kv_pages:
            await asyncio.sleep(0.001)


async def test_streams_what_the_engine_makes(worker: Worker) -> None:
    deltas = await read(worker, "a")
    assert sum(len(delta.token_ids) for delta in deltas) == 3
    assert deltas[-1].finish_reason == "length"


async def test_an_ingress_on_this_machine_gets_tokens_by_a_direct_line(
    worker: Worker, model: Model, tmp_path: Path
) -> None:
    model.pace = with_the_loop()
    by_line: list[Part] = []
    by_stream: list[Part] = []
    lines = Lines(tmp_path / LINES_FOLDER / "ingress", by_line.extend)
    await lines.open()
    try:
        for name in ("a", "b"):
            async for bundle in worker.generate(GenerateRequest(name, (1, 2, 3), 40, tenant=b""), reader="ingress"):
                by_stream += bundle
    finally:
        lines.close()
        while worker._streams.has_line("ingress"):
            await asyncio.sleep(0.001)
    for name in ("a", "b"):
        assert sum(part.request_id == name for part in by_line) > 3
        assembler, tokens = Assembler(), 0
        for part in (*by_line, *by_stream):
            if part.request_id == name:
                assembler.put(part)
        while (delta := assembler.take()) is not None:
            tokens += len(delta.token_ids)
        assert tokens == 40
    assert sum(len(delta.token_ids) for delta in await read(worker, "ingress")) == 3  # there is no line any more


async def test_a_worker_reports_its_facts(worker: Worker, model: Model) -> None:
    facts = WorkerFacts.from_wire(worker.record_replica_metadata())
    assert facts.model.name == "some-model"
    assert facts.pid == os.getpid()
    assert facts.speed > 0
    assert os.sched_getaffinity(0) == set(facts.cpus)
    assert model.threads == len(facts.cpus)
    assert (facts.tier, facts.max_running, facts.max_waiting, facts.max_saved_bytes) == ("scalar", 2, 1, None)
    assert abs(facts.ready_since - time.time()) < 60
    assert report(worker).saved_bytes is None


async def test_a_request_for_another_version_of_the_model_is_refused(worker: Worker) -> None:
    identity = WorkerFacts.from_wire(worker.record_replica_metadata()).model.identity
    assert len(identity) == 16
    for planned_for, is_right in (("", True), (identity, True), ("0" * 16, False)):
        asked = replace(request(planned_for), model_identity=planned_for)
        if is_right:
            assert [delta async for delta in worker.generate(asked, reader="a")]
            continue
        with pytest.raises(ModelReplacedError):
            await anext(worker.generate(asked, reader="a"))
    await until_idle(worker)


async def test_the_first_delta_tells_how_it_is_computed(worker: Worker) -> None:
    facts = WorkerFacts.from_wire(worker.record_replica_metadata())
    model = await read(worker, "a")
    assert [delta.arithmetic for delta in model] == [facts.arithmetic, *("" for _ in model[1:])]


async def test_every_heartbeat_is_different(worker: Worker) -> None:
    first = report(worker)
    await asyncio.sleep(0.002)
    assert report(worker).heart_beat > first.heart_beat
    assert abs(first.heart_beat - time.time()) < 60


async def test_two_requests_run_one_waits_one_is_refused(worker: Worker, model: Model) -> None:
    model.gate.clear()
    tasks = [asyncio.create_task(read(worker, name)) for name in "abc"]
    await asyncio.sleep(0)
    assert (report(worker).running, report(worker).waiting) == (2, 1)
    with pytest.raises(QueueFullError):
        await read(worker, "d")
    model.gate.set()
    assert [len(deltas) > 0 for deltas in await asyncio.gather(*tasks)] == [True] * 3
    await until_idle(worker)


async def test_a_batch_gives_its_place_back_with_all_of_its_tokens(worker: Worker, model: Model) -> None:
    model.pace = with_the_loop()
    chat = replace(request("line", new_tokens=100), sampling=SamplingParams(seed=3))
    line = replace(chat, priority=Priority.BATCH)
    got: list[int] = []

    async def read_line() -> None:
        async for (part,) in worker.generate(line, reader="batch"):
            got.extend(part.delta.token_ids)

    reading = asyncio.create_task(read_line())
    while len(got) < 3:
        await asyncio.sleep(0.001)
    assert (report(worker).running, report(worker).waiting, report(worker).batch) == (0, 0, 1)
    chats = [asyncio.create_task(read(worker, name, new_tokens=50)) for name in "ab"]
    with pytest.raises(PlaceWantedBackError):
        await reading
    await asyncio.gather(*chats)
    await until_idle(worker)
    alone = [token async for (part,) in worker.generate(chat, reader="chat") for token in part.delta.token_ids]
    assert got == alone[: len(got)]


async def test_where_states_of_fewer_requests_fit_the_others_wait(machine: None, model: Model) -> None:
    model.options = {"max_sequences": 1, "state_pages": 6}
    worker = Worker(parse_settings(SETTINGS), model.make)
    facts = WorkerFacts.from_wire(worker.record_replica_metadata())
    assert (facts.max_running, facts.max_waiting) == (1, 2)
    model.gate.clear()
    tasks = [asyncio.create_task(read(worker, name)) for name in "abc"]
    await asyncio.sleep(0)
    assert (report(worker).running, report(worker).waiting) == (1, 2)
    with pytest.raises(QueueFullError):
        await read(worker, "d")
    model.gate.set()
    assert [len(deltas) > 0 for deltas in await asyncio.gather(*tasks)] == [True] * 3
    await until_idle(worker)
    worker.__del__()


async def test_a_request_that_waits_for_a_place_is_told_so_if_it_asks(worker: Worker, model: Model) -> None:
    model.pace = with_the_loop()
    running = [asyncio.create_task(read(worker, name, new_tokens=100)) for name in "ab"]
    await asyncio.sleep(0)
    asks = GenerateRequest("asks", (1, 2, 3), 3, tenant=b"", reports_progress=True)
    async with aclosing(worker.generate(asks, reader="asks")) as bundles:
        (waits,) = await anext(bundles)
        assert waits.delta.progress == PromptProgress(3, 0, 0, 0.0, queued_ahead=0)
        assert report(worker).waiting == 1
        with pytest.raises(QueueFullError):
            await anext(worker.generate(asks, reader="asks"))  # before there is any news
        deltas = [part.delta async for (part,) in bundles]
    told = [delta.progress for delta in deltas if delta.progress is not None]
    assert told[-1] == PromptProgress(3, 0, 3, told[-1].elapsed_s, queued_ahead=None)
    assert sum(len(delta.token_ids) for delta in deltas) == 3
    await asyncio.gather(*running)
    await until_idle(worker)


@pytest.mark.parametrize("victim", [0, 2])
async def test_a_client_that_disconnects_frees_its_place_and_pages(worker: Worker, model: Model, victim: int) -> None:
    model.gate.clear()
    tasks = [asyncio.create_task(read(worker, name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[victim].cancel()
    await asyncio.gather(tasks[victim], return_exceptions=True)
    await asyncio.sleep(0)
    assert report(worker).running + report(worker).waiting == 2
    model.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until_idle(worker)


async def test_closing_a_stream_aborts_it(worker: Worker) -> None:
    async with aclosing(worker.generate(request("long", new_tokens=100), reader="ingress")) as bundles:
        await anext(bundles)
    await until_idle(worker)


async def test_a_broken_engine_fails_its_health_check_and_reports_nothing(worker: Worker, model: Model) -> None:
    worker.check_health()
    model.broken = True
    for number in range(9):
        with pytest.raises(Exception, match=r"broken|fail|stopped"):
            await read(worker, str(number))
    with pytest.raises(EngineStoppedError):
        worker.check_health()
    with pytest.raises(EngineStoppedError):
        worker.record_routing_stats()


async def test_no_two_workers_share_cores(worker: Worker, model: Model) -> None:
    with pytest.raises(NoFreeCoresError):
        Worker(parse_settings(SETTINGS), model.make)
    worker.__del__()
    second = Worker(parse_settings(SETTINGS), model.make)
    second.__del__()


@pytest.mark.parametrize(
    ("options", "machines", "cores"),
    [
        ({"autoscaling": {"max_workers": 2}}, 1, 2),
        ({"count": 4}, 1, 1),
        ({"count": 4}, 2, 2),
        ({"count": 2}, 2, 4),
        ({"count": 2, "ray_resources": {"numa_node": 1.0}}, 1, 4),
        ({"count": 2, "cpus_per_worker": 3}, 1, 3),
    ],
)
async def test_workers_share_the_cores_of_their_machine(
    machine: None,
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    machines: int,
    cores: int,
) -> None:
    monkeypatch.setattr("app.workers.worker.machines", lambda: machines)
    monkeypatch.setattr("app.workers.worker.numa_nodes", lambda allowed: [Slot(0, (0, 1, 2, 3))])
    monkeypatch.setattr("app.workers.worker.pin_this_thread", lambda slot: None)
    monkeypatch.setattr("app.workers.worker.cpu_quota", lambda: None)
    worker = Worker(parse_settings(SETTINGS | {"worker": SETTINGS["worker"] | options}), model.make)
    worker.__del__()
    assert model.threads == cores


async def test_a_worker_of_the_next_version_runs_beside_this_one_if_there_is_memory(
    worker: Worker, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = os.sched_getaffinity(0)
    monkeypatch.setattr("app.workers.worker.own_deployment", lambda: ("app", "v2"))
    with pytest.raises(NoFreeCoresError):
        Worker(parse_settings(SETTINGS | {"worker": {"surge": False}}), model.make)
    monkeypatch.setattr("app.workers.worker.available_memory_bytes", lambda: 1_500_000_000)
    with pytest.raises(NoRoomError, match=r"takes up to 1\.6 GB, and 1\.5 GB are left.*worker\.surge"):
        Worker(parse_settings(SETTINGS), model.make)
    gc.collect()  # the failed one's locks
    monkeypatch.setattr("app.workers.worker.available_memory_bytes", lambda: 1_700_000_000)
    second = Worker(parse_settings(SETTINGS), model.make)
    assert os.sched_getaffinity(0) == cores
    assert await asyncio.gather(read(worker, "a"), read(second, "b"))
    second.__del__()


async def test_more_threads_than_cores_are_refused(machine: None, model: Model) -> None:
    settings = parse_settings(SETTINGS | {"worker": {"threads": 4096}})
    with pytest.raises(ValueError, match=r"worker\.threads is 4096"):
        Worker(settings, model.make)
