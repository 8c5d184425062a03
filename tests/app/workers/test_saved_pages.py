"""The worker with a folder of saved pages: what it says and does for users, and what is left when it ends."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.engine.model_runner import ModelRunner
from app.engine.native_runner import NativeRunner
from app.memory.folder import MemoryFolderError
from app.memory.io_threads import FolderStore
from app.memory.page_file import file_bytes
from app.messages.memory import MemoryGrant, SavedPages
from app.messages.requests import GenerateRequest, SamplingParams
from app.model_folder import ModelFolder
from app.settings.applications import ModelApplicationSettings, parse_settings
from app.settings.knobs import SettingsError
from app.workers.saved_pages import open_store, store_of
from app.workers.worker import Worker
from tests.app.memory.pages import FINGERPRINT, files_in, grant_for
from tests.app.workers.test_worker import SETTINGS, Model, machine, model
from tests.fakes import FakeRunner
from tests.kernels.tiny_model import write_random_model

__all__ = ["machine", "model"]  # fixtures

ADA, EVE = grant_for("ada"), grant_for("eve")
PROMPT = tuple(range(100, 130))  # 7 pages of 4, and 2 tokens
FILE_BYTES = file_bytes(FakeRunner().gathered_page_bytes)


@pytest.fixture(autouse=True)
def patient_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved pages are waited for, on a machine that has other work too."""
    monkeypatch.setattr("app.engine.memory.loads._ALWAYS_DEADLINE_S", 600.0)


def make_store(settings: ModelApplicationSettings, files: ModelFolder, runner: ModelRunner) -> FolderStore:
    return store_of(settings.memory, runner, FINGERPRINT)


@contextmanager
def working(
    model: Model, root: Path | None, sleep: Mapping[str, float] | None = None, **memory: Any
) -> Iterator[Worker]:
    folder = {} if root is None else {"folder": str(root), "restore": "always", "min_tokens": 1}
    settings = parse_settings({**SETTINGS, "memory": {**folder, **memory}, "sleep": {**(sleep or {})}})
    worker = Worker(settings, model.make, make_store)
    try:
        yield worker
    finally:
        worker.__del__()


async def cached(worker: Worker, grant: MemoryGrant | None = ADA, prompt: tuple[int, ...] = PROMPT) -> int:
    """Asks, and returns how many tokens of the prompt were not computed."""
    request = GenerateRequest("a", prompt, 3, SamplingParams(seed=1), tenant=b"", memory=grant)
    deltas = [part.delta async for (part,) in worker.generate(request, reader="a")]
    assert sum((delta.token_ids for delta in deltas), ()) == FakeRunner().expected_tokens(request)
    return sum(delta.cached_tokens for delta in deltas)


async def test_a_worker_that_is_removed_saves_what_is_left(machine: None, model: Model, tmp_path: Path) -> None:
    with working(model, tmp_path / "pages") as worker:
        assert await cached(worker) == 0
        assert await cached(worker, EVE) == 0
        assert files_in(tmp_path / "pages") == []
    files = files_in(tmp_path / "pages")
    assert len(files) == 16
    with working(model, tmp_path / "pages") as worker:
        assert await cached(worker) == 28
        assert await cached(worker, EVE) == 28
        assert await cached(worker, None) == 0
        assert worker.memory_statistics()["restored_tokens"] == 56
        assert worker.memory_statistics()["loaded_pages"] == 14
        deadline_s = time.monotonic() + 60
        while (saved := worker.record_routing_stats()["saved_bytes"]) is None:
            assert time.monotonic() < deadline_s, "the sweep after the start counts"
            time.sleep(0.01)
        assert saved == sum(file.stat().st_size for file in files)


async def test_a_model_that_sleeps_has_saved_its_pages(machine: None, model: Model, tmp_path: Path) -> None:
    with working(model, tmp_path / "pages", sleep={"after_s": 0.05}) as worker:
        for restored in (0, 28, 28):
            assert await cached(worker) == restored
            while not worker.record_routing_stats()["asleep"]:
                await asyncio.sleep(0.005)
        assert len(files_in(tmp_path / "pages")) == 8
        assert worker.memory_statistics()["restored_tokens"] == 56


async def test_flush_clear_use_and_forget(machine: None, model: Model, tmp_path: Path) -> None:
    with working(model, tmp_path / "pages", restore="never") as worker:
        await cached(worker)
        await cached(worker, EVE)
        assert await worker.memory_use(ADA.owner) == (0, 0)
        saved = await worker.flush_memory(ADA.owner)
        assert (saved.saved_pages, saved.unsaved_pages) == (8, 0)
        assert await worker.memory_use(ADA.owner) == (8, 8 * FILE_BYTES)
        assert await worker.memory_use(EVE.owner) == (0, 0)
        assert await cached(worker) == 28, "flushed, and still in memory"
        assert (await worker.clear_memory(ADA.owner)).unsaved_pages == 0
        assert await cached(worker) == 0, "cleared"
        assert await worker.forget_memory(ADA.owner, ADA.conversation_key_id) == 8
        assert await cached(worker) == 0
        assert await worker.flush_memory(ADA.owner) == SavedPages(0, 0, 0), "nothing is saved with a forgotten key"
        await worker.clear_memory(EVE.owner)
        assert await worker.forget_memory(EVE.owner, None) == 8
    assert files_in(tmp_path / "pages") == []


async def test_a_worker_whose_disk_is_gone_serves_on(machine: None, model: Model, tmp_path: Path) -> None:
    with working(model, tmp_path / "pages") as worker:
        await cached(worker)
        (tmp_path / "pages").rename(tmp_path / "gone")
        saved = await worker.flush_memory(ADA.owner)
        assert (saved.saved_pages, saved.unsaved_pages) == (0, 8)
        assert await cached(worker) == 28
        await worker.clear_memory(ADA.owner)
        assert await cached(worker) == 0
        with pytest.raises(OSError, match="No such file"):
            await worker.memory_use(ADA.owner)


async def test_without_a_folder_there_is_no_memory(machine: None, model: Model, tmp_path: Path) -> None:
    with working(model, None) as worker:
        assert await cached(worker) == 0
        assert await cached(worker, EVE) == 28, "a grant says nothing: pages are the tenant's, as ever"
        assert await worker.flush_memory(ADA.owner) == await worker.clear_memory(ADA.owner) == SavedPages(0, 0, 0)
        assert await worker.forget_memory(ADA.owner, None) == 0
        assert await worker.memory_use(ADA.owner) == (0, 0)
        assert worker.memory_statistics() == {}


def test_a_folder_that_can_not_be_used_is_named(machine: None, model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MemoryFolderError, match=r"memory\.folder .*/file: .*; it must be a folder to write to"):
        Worker(parse_settings({**SETTINGS, "memory": {"folder": str(tmp_path / "file")}}), model.make, make_store)


def test_saved_pages_need_the_prefix_cache() -> None:
    with pytest.raises(SettingsError, match=r"memory\.folder: pages are saved from the prefix cache"):
        parse_settings({"model": {"folder": "m"}, "engine": {"prefix_cache": False}, "memory": {"folder": "pages"}})


@pytest.fixture
def fingerprint_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)

    def fingerprint(model: Path, kv_type: str = "int16", compute_type: str = "int8") -> bytes:
        settings = parse_settings(
            {
                "model": {"folder": str(model)},
                "engine": {"kv_type": kv_type, "compute_type": compute_type},
                "memory": {"folder": str(tmp_path / "pages"), "threads": 1},
            }
        )
        runner = NativeRunner(
            str(model),
            threads=1,
            kv_type=kv_type,
            compute_type=compute_type,
            kv_pages=4,
            max_sequences=1,
            max_step_tokens=20,
            max_context_tokens=64,
        )
        store = open_store(settings, settings.model.path, runner)
        store.close()
        return store.fingerprint

    return fingerprint


def test_models_share_pages_only_if_all_bits_are_the_same(fingerprint_of: Callable[..., bytes], tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "one")
    other = write_random_model(tmp_path / "other")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # of the last tensor in the file, wherever that is used
    (other / "model.safetensors").write_bytes(weights)
    again = write_random_model(tmp_path / "again")
    first = fingerprint_of(model)
    assert fingerprint_of(again) == first
    others = {
        fingerprint_of(other),
        fingerprint_of(model, kv_type="bf16"),
        fingerprint_of(model, compute_type="fp32"),
        fingerprint_of(model, kv_type="int8"),
    }
    assert len(others) == 4
    assert first not in others
