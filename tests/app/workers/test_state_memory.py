"""How memory is divided between recurrent states and keys and values."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.scheduling.limits import least_state_pages
from app.settings.applications import ModelApplicationSettings
from app.workers.load import load_model
from app.workers.numa import Slot
from app.workers.state_memory import CACHED_PAGES, WorkerMemory, divide, memory_for, memory_of
from kernels import _native
from quant.families.description import DeltaNet
from tests.kernels.hybrid_model import with_delta, write_hybrid
from tests.kernels.tiny_model import write_random_model

MB = 1_000_000
PAGE = 117 * MB
"""Of Qwen3.6-35B-A3B, about."""


def test_states_first_then_some_to_cache_and_the_rest_for_keys_and_values() -> None:
    memory = divide(64_000 * MB, page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34)
    assert memory == WorkerMemory(34, 70 + CACHED_PAGES, 64_000 * MB - 78 * PAGE)


def test_fewer_sequences_where_their_states_would_take_more_than_half() -> None:
    memory = divide(8_000 * MB, page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34)
    assert (memory.sequences, memory.state_pages) == (16, 34 + CACHED_PAGES)
    assert divide(memory_for(34, PAGE), page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34).sequences == 34
    assert divide(memory_for(34, PAGE) - 1, page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34).sequences == 33


def test_one_sequence_runs_as_long_as_it_fits() -> None:
    assert divide(1 << 30, page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34) == WorkerMemory(
        1, 6, (1 << 30) - 6 * PAGE
    )
    least = 4 * PAGE + 40 * MB
    assert divide(least, page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34) == WorkerMemory(1, 4, 40 * MB)
    with pytest.raises(ValueError, match=rf"kv_memory_bytes is {least - 1}, .* at least {least}$"):
        divide(least - 1, page_bytes=PAGE, least_kv_bytes=40 * MB, sequences=34)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 28), st.integers(1, 1 << 28), st.integers(1, 5000))
def test_it_always_fits(memory_bytes: int, page_bytes: int, least_kv_bytes: int, sequences: int) -> None:
    try:
        memory = divide(memory_bytes, page_bytes=page_bytes, least_kv_bytes=least_kv_bytes, sequences=sequences)
    except ValueError:
        assert least_state_pages(1) * page_bytes + least_kv_bytes > memory_bytes
        return
    assert 1 <= memory.sequences <= sequences
    assert memory.state_pages >= least_state_pages(memory.sequences)
    assert memory.state_pages * page_bytes + memory.kv_bytes == memory_bytes
    assert memory.kv_bytes >= min(least_kv_bytes, memory_bytes // 4)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state page of it has 1.5 MB."""
    delta = DeltaNet(key_heads=4, value_heads=16, key_dim=32, value_dim=64)
    folder = write_hybrid(tmp_path_factory.mktemp("hybrid") / "model", with_delta(delta))
    (folder / "config.json").write_text('{"max_position_embeddings": 2048}')
    return str(folder)


def settings_with(**changes: Any) -> ModelApplicationSettings:
    return ModelApplicationSettings.model_validate({"model": {"folder": "models/m"}} | changes)


def test_a_model_with_states_runs_fewer_requests_and_says_which_settings_decide(
    hybrid: str, caplog: pytest.LogCaptureFixture
) -> None:
    page_bytes = _native.Model.state_page_bytes(hybrid)
    engine = {"kv_memory_bytes": 24 * page_bytes}
    with caplog.at_level(logging.WARNING, "ray.serve"):
        memory = memory_of(settings_with(engine=engine), hybrid, "fp32", 512, 34)
    assert (memory.sequences, memory.state_pages) == (5, 12 + 6)
    [line] = caplog.messages
    assert line.startswith("Requests that run at a time: 5, not worker.max_concurrent_requests (32). ")
    assert line.endswith(
        f"engine.kv_memory_bytes ({24 * page_bytes}) is for them; for all of them set it to {140 * page_bytes}"
    )
    caplog.clear()
    engine = {"kv_memory_bytes": 140 * page_bytes}
    assert memory_of(settings_with(engine=engine), hybrid, "fp32", 512, 34).sequences == 34
    assert not caplog.messages


def test_a_model_without_states_has_all_of_it_for_keys_and_values(tmp_path: Path) -> None:
    folder = str(write_random_model(tmp_path / "model"))
    assert memory_of(settings_with(), folder, "fp32", 512, 34) == WorkerMemory(34, 0, 1 << 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"folder": "models/m", "on_overflow": "shift"}}, r"^model\.on_overflow is shift, but .* refuse$"),
        ({"memory": {"folder": "/somewhere"}}, r"^memory\.folder is set, but .* leave memory\.folder out$"),
        ({"engine": {"kv_memory_bytes": 1 << 20}}, r"^engine\.kv_memory_bytes is 1048576, but .* at least \d+$"),
    ],
)
def test_settings_that_such_a_model_cannot_have(hybrid: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        memory_of(settings_with(**changes), hybrid, "fp32", 512, 34)


def test_a_worker_loads_it(hybrid: str) -> None:
    page_bytes = _native.Model.state_page_bytes(hybrid)
    settings = settings_with(
        model={"folder": hybrid},
        engine={"kv_memory_bytes": 24 * page_bytes, "max_context_tokens": 512},
        worker={"bind_memory": False},
    )
    runner = load_model(settings, Path(hybrid), Slot(0, (min(os.sched_getaffinity(0)),)), 1)
    assert (runner.max_sequences, runner.state_pages) == (5, 18)
    kv_page_bytes = _native.Model.kv_page_bytes(hybrid, "int16", 512)
    assert runner.kv_pages == 6 * page_bytes // kv_page_bytes
