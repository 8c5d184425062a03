"""A worker's model that sleeps: when it falls asleep, who wakes it, and what happens where memory is short."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.messages.failures import QueueFullError
from app.messages.requests import GenerateRequest, SamplingParams
from app.settings.applications import parse_settings
from app.settings.knobs import SettingsError
from app.workers.awake_models import AwakeModels
from app.workers.machine_memory import NoRoomError
from app.workers.worker import Worker
from tests.app.workers.test_worker import SETTINGS, Model, machine, read, report

__all__ = ["machine"]

KV_BYTES = 1 << 20
NEEDED = (512 << 20) + KV_BYTES
"""Memory of a model without weights, by the worker's count."""


def settings_of(name: str, **sleep: Any) -> Any:
    engine = {**SETTINGS["engine"], "kv_memory_bytes": KV_BYTES}
    return parse_settings({**SETTINGS, "model": {"folder": f"models/{name}"}, "engine": engine, "sleep": sleep})


@asynccontextmanager
async def serving(name: str, model: Model | None = None, **sleep: Any) -> AsyncIterator[Worker]:
    model = model or Model()
    worker = Worker(settings_of(name, **sleep), model.make)
    try:
        yield worker
    finally:
        model.gate.set()
        await asyncio.sleep(0)
        worker.__del__()


@contextmanager
def another(name: str, folder: Path, *, most: int) -> Iterator[AwakeModels]:
    model = AwakeModels(folder, name, NEEDED, most)
    try:
        yield model
    finally:
        model.release()


async def greedy(worker: Worker) -> list[int]:
    one = GenerateRequest("greedy", (1, 2, 3) * 20, 40, SamplingParams(temperature=0.0), tenant=b"")
    bundles = [bundle async for bundle in worker.generate(one, reader="reader")]
    return [token for ((_, _, delta),) in bundles for token in delta.token_ids]


async def until_asleep(worker: Worker) -> None:
    async with asyncio.timeout(60):
        while not report(worker).asleep:
            await asyncio.sleep(0.005)


async def test_an_idle_model_sleeps_and_wakes_with_the_same_answer(machine: None) -> None:
    async with serving("one", after_s=0.1) as worker:
        awake = await greedy(worker)
        assert not report(worker).asleep
        await until_asleep(worker)
        assert (report(worker).kv_pages_cached, report(worker).running) == (0, 0)
        assert await greedy(worker) == awake
        assert not report(worker).asleep


async def test_a_model_that_may_not_sleep_stays_awake(machine: None) -> None:
    async with serving("one") as worker:
        await asyncio.sleep(0.2)
        assert not report(worker).asleep


async def test_a_busy_model_stays_awake(machine: None) -> None:
    model = Model()
    async with serving("one", model, after_s=0.05) as worker:
        model.gate.clear()
        answer = asyncio.create_task(read(worker, "a"))
        await asyncio.sleep(0.3)
        assert not report(worker).asleep
        model.gate.set()
        await answer


async def test_models_that_may_sleep_share_cores_and_the_one_unused_for_longest_gives_its_memory(machine: None) -> None:
    room: dict[str, Any] = {"after_s": 3600.0, "awake_bytes": 2 * NEEDED}
    async with serving("one", **room) as one, serving("two", **room) as two:
        await read(two, "a")
        await read(one, "a")
        with another("third", _folder(one), most=2 * NEEDED) as third:
            await asyncio.to_thread(third.claim, 30.0)
            assert (report(one).asleep, report(two).asleep) == (False, True)


async def test_a_request_waits_until_a_busy_model_is_done(machine: None) -> None:
    room: dict[str, Any] = {"after_s": 3600.0, "awake_bytes": NEEDED}
    busy = Model()
    async with serving("one", busy, **room) as one:
        third = AwakeModels(_folder(one), "third", NEEDED, NEEDED)
        busy.gate.clear()
        answer = asyncio.create_task(read(one, "a"))
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFullError, match=r"third is asleep, and others .*: one \(0\.5 GB\)"):
            await asyncio.to_thread(third.claim, 0.2)
        waiting = asyncio.create_task(asyncio.to_thread(third.claim, 30.0))
        await asyncio.sleep(0.05)
        busy.gate.set()
        await asyncio.gather(answer, waiting)
        await until_asleep(one)
        third.release()


async def test_many_requests_wake_it_once_and_those_that_are_given_up_do_no_harm(machine: None) -> None:
    async with serving("one", after_s=0.1) as worker:
        await until_asleep(worker)
        given_up = asyncio.create_task(read(worker, "a"))
        await asyncio.sleep(0)
        given_up.cancel()
        answers = await asyncio.gather(read(worker, "b"), read(worker, "c"))
        assert all(answer[-1].finish_reason == "length" for answer in answers)


def test_a_model_that_can_never_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoRoomError, match=r"'huge' needs 9\.0 GB .* sleep\.awake_bytes allows 8\.0 GB"):
        AwakeModels(tmp_path, "huge", 9_000_000_000, 8_000_000_000).claim(1.0)


def test_a_worker_that_has_ended_takes_no_memory(tmp_path: Path) -> None:
    with another("dead", tmp_path, most=NEEDED) as dead, another("next", tmp_path, most=NEEDED) as following:
        dead.claim(None)
        with pytest.raises(QueueFullError):
            following.claim(0.0)
        assert dead._lock is not None
        dead._lock.close()  # as the kernel does
        following.claim(0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": {"weight_memory": "huge_pages"}},
        {"worker": {"numa": "all"}},
        {"model": {"sealed": "file", "key": "file:///key", "served_name": "it"}},
    ],
)
def test_copies_of_weights_can_t_sleep(wrong: dict[str, Any]) -> None:
    (section, values) = next(iter(wrong.items()))
    (knob,) = (name for name in values if name in ("weight_memory", "numa", "sealed"))
    with pytest.raises(SettingsError, match=rf"sleep\.after_s: with {section}\.{knob}.* can't be given back"):
        parse_settings({**SETTINGS, **wrong, "sleep": {"after_s": 1.0}})


def _folder(worker: Worker) -> Path:
    return worker._models._folder


async def test_it_falls_asleep_again_and_again(machine: None) -> None:
    async with serving("one", after_s=0.05) as worker:
        for number in range(3):
            await until_asleep(worker)
            await read(worker, f"{number}")
