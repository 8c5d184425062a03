"""The worker of an encoder, with the native engine on a small model: beside another worker, and its bounds."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.deploy import worker_deployment
from app.messages.failures import InvalidRequestError, ModelReplacedError, QueueFullError
from app.messages.requests import GenerateRequest, Priority, Texts
from app.messages.workers import WorkerFacts, WorkerReport
from app.settings.applications import ModelApplicationSettings, parse_settings
from app.workers.core_claims import Holder, claim_slot
from app.workers.encoder_worker import EncoderWorker
from app.workers.numa import Slot
from quant.conversion.convert import convert
from tests.quant.encoder_checkpoints import DENSE_ROWS, write_encoder_folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    convert(write_encoder_folder(folder / "source"), folder / "packed", progress=False)
    return folder / "packed"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    for name, value in {
        "session_folder": lambda name: tmp_path / name, "keep_on_loopback": lambda: None, "machines": lambda: 1,
        "own_actor": lambda: "actor", "own_deployment": lambda: ("app", "v1"),
        "mark_crashes": lambda folder, actor: None, "_CLAIM_TIMEOUT_S": 0.0,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"app.workers.worker.{name}", value)
    allowed = os.sched_getaffinity(0)
    yield tmp_path
    os.sched_setaffinity(0, allowed)


def settings_of(packed: Path) -> ModelApplicationSettings:
    worker: dict[str, Any] = {"max_concurrent_requests": 1, "max_queued_requests": 1, "bind_memory": False}
    return parse_settings({"model": {"folder": str(packed)}, "worker": worker})


@pytest.fixture
async def worker(machine: Path, packed: Path) -> AsyncIterator[EncoderWorker]:
    worker = EncoderWorker(settings_of(packed))
    yield worker
    worker.__del__()


def request(*lengths: int, **options: Any) -> GenerateRequest:
    sizes = np.array(lengths, np.int32)
    ids = np.arange(int(sizes.sum()), dtype=np.int32) % 320
    return GenerateRequest("r", (), 0, texts=Texts(ids, sizes, sizes), tenant=b"", **options)


async def vectors(worker: EncoderWorker, asked: GenerateRequest) -> Any:
    ((part,),) = [bundle async for bundle in worker.generate(asked, reader="ingress")]
    assert part.delta.finish_reason == "length"
    assert part.delta.prompt is not None
    return part.delta.prompt.embedding


async def test_it_makes_vectors_on_the_cores_of_another(worker: EncoderWorker, machine: Path, packed: Path) -> None:
    facts = WorkerFacts.from_wire(worker.record_replica_metadata())
    assert (facts.max_context_tokens, facts.max_running, facts.max_waiting) == (48, 1, 1)
    slot = Slot(facts.numa_node, facts.cpus)
    claim_slot([slot], machine / "redoubt-cores", 0.0, Holder("chat", "v1", may_share=False)).release()
    found = await vectors(worker, request(5, 48, 1))
    assert found.shape == (3, DENSE_ROWS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    report = WorkerReport.from_wire(worker.record_routing_stats())
    assert report.computed_tokens >= 54
    assert report.running == report.waiting == 0
    assert (await worker.flush_memory("")).unsaved_pages == 0
    assert worker_deployment(settings_of(packed)).func_or_class is EncoderWorker


async def test_what_it_refuses(worker: EncoderWorker) -> None:
    with pytest.raises(InvalidRequestError, match="48 tokens"):
        await vectors(worker, request(49))
    with pytest.raises(ModelReplacedError):
        await vectors(worker, request(1, model_identity="another"))
    with pytest.raises(InvalidRequestError, match="makes no text"):
        await vectors(worker, GenerateRequest("r", (1,), 1, tenant=b""))


async def test_places_are_bounded(worker: EncoderWorker) -> None:
    asked = [asyncio.create_task(vectors(worker, request(48))) for _ in range(3)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, QueueFullError) for each in results) == 1
    found = await vectors(worker, request(5, priority=Priority.BATCH))
    assert found.shape == (1, DENSE_ROWS)
