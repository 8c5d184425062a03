"""What a conversion is said to take: the counts beside what it really takes, the words, and refusals in time."""

import contextlib
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import quant.conversion.calibrated as calibrated
from quant.calibration.layers import run_layer
from quant.calibration.work_folder import WorkFolder, work_folder_bytes
from quant.conversion import estimate, foretold
from quant.conversion.convert import convert
from quant.conversion.estimate import ModelShape, Plan, Speeds, duration
from quant.errors import ResourceError
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

LAYERS = 3
WIDE = {**CONFIG, "num_hidden_layers": LAYERS, "hidden_size": 256, "intermediate_size": 512}
SHAPE = ModelShape(layers=4, hidden=256, inner=512, heads=4, queries=256, keys=128, vocabulary=1000)
PLAN = Plan(SHAPE, "tuned", 512, 30, 20, 2 * 256 * 1000, 10**7, 10**6)
SPEEDS = Speeds(1e-11, 1e-9, (1e-6, 1e-9), 1e-8, 1e-9, 2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {name: values / np.float32(16) for name, values in random_tensors(WIDE).items()}
    return write_hf_folder(tmp_path / "hf", tensors, WIDE)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("".join(np.random.default_rng(0).permutation(list("a quick fox; 012\n" * 200))))
    return tmp_path / "text.txt"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans of the conversions that the test runs."""
    seen = []

    def plan_of(*arguments: Any) -> Plan:
        seen.append(foretold.plan_of(*arguments))
        return seen[-1]

    monkeypatch.setattr("quant.conversion.convert.plan_of", plan_of)
    return seen


def test_the_counts_are_near_what_is_taken(
    source: Path, text: Path, tmp_path: Path, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, disk = tmp_path / "out", []
    finish = WorkFolder.finish_step

    def finish_step(work: WorkFolder, number: int) -> None:
        finish(work, number)
        disk.append(work_folder_bytes(out))

    monkeypatch.setattr(WorkFolder, "finish_step", finish_step)
    tracemalloc.start()
    try:
        convert(source, out, method="tuned", calibration_text=text, progress=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (plan,) = plans
    assert plan.output_bytes == pytest.approx((out / "model.safetensors").stat().st_size, rel=0.02)
    assert 0.6 < (estimate.memory_bytes(plan) - (160 << 20)) / peak < 1.7
    assert 0.6 < estimate.disk_bytes(plan) / (max(disk) + plan.output_bytes) < 1.7


def test_more_work_takes_longer_and_finished_steps_take_none() -> None:
    whole = estimate.seconds(PLAN, SPEEDS)
    for more in (
        replace(PLAN, windows=60),
        replace(PLAN, tuning_windows=60),
        replace(PLAN, source_bytes=10**9),
        replace(PLAN, rounded_weights=10**8),
        replace(PLAN, is_weighed=True),
        replace(PLAN, shape=replace(SHAPE, layers=8)),
    ):
        assert estimate.seconds(more, SPEEDS) > 1.01 * whole
    times = [estimate.seconds(PLAN, SPEEDS, done) for done in range(SHAPE.layers + 6)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    assert estimate.seconds(replace(PLAN, method="rtn"), SPEEDS) < 0.1 * whole


@pytest.mark.parametrize("method", ["rtn", "scale", "gptq", "signround", "tuned"])
def test_each_method_is_measured(
    method: str, source: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("quant.conversion.convert.calibrate", Mock(side_effect=KeyboardInterrupt))
    with contextlib.suppress(KeyboardInterrupt):
        convert(source, tmp_path / "out", method=method, calibration_text=text, progress=False, tell=said.append)
    assert said[0].startswith(f"Converting by {method} takes ")
    assert "Ctrl-C stops it; the same command " in said[0]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "a few seconds"),
        (40, "about 30 to 60 seconds"),
        (300, "about 4 to 7 minutes"),
        (3000, "about 38 to 68 minutes"),
        (9000, "about 2 to 3 hours"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_too_little_memory_or_disk_is_said_before_the_work(
    source: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrated, "run_layer", None)
    monkeypatch.setattr(foretold, "available_memory_bytes", lambda: 150_000_000)
    with pytest.raises(
        ResourceError, match=r"^method gptq needs about 0\.2 GB of memory .* 0\.1 GB are free; --method rtn"
    ):
        convert(source, tmp_path / "out", method="gptq", calibration_text=text, progress=False)
    monkeypatch.setattr(foretold, "free_bytes", lambda out: 3_000_000)
    with pytest.raises(ResourceError, match=r"out: needs \d\d MB of disk, 3 MB are free; --method rtn needs \d\d MB"):
        convert(source, tmp_path / "out", method="gptq", calibration_text=text, progress=False)
    with pytest.raises(ResourceError, match=r"out: needs \d\d MB of disk, 3 MB are free$"):
        convert(source, tmp_path / "out", method="rtn", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "text.txt"]


def test_ctrl_c_says_how_to_go_on(source: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def stopping_at(last: int) -> None:
        def run(number: int, *rest: Any) -> None:
            if number == last:
                raise KeyboardInterrupt
            run_layer(number, *rest)

        monkeypatch.setattr(calibrated, "run_layer", run)

    def again() -> None:
        convert(source, tmp_path / "out", method="gptq", calibration_text=text, progress=False, tell=said.append)

    stopping_at(0)
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted after no layer yet; the same command begins again$"):
        again()
    stopping_at(2)
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted after layer 2 of 3; the same command goes on"):
        again()
    assert not (tmp_path / "out").exists()
    stopping_at(LAYERS)
    said.clear()
    again()
    assert said[1].startswith("Going on after layer 2 of 3: ")
    assert (tmp_path / "out").is_dir()


def test_a_containers_memory_is_its_limit(tmp_path: Path) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 2 kB\n")
    limit.write_text("max\n")
    assert estimate.available_memory_bytes(info, limit) == 7 << 10
    limit.write_text("3000\n")
    assert estimate.available_memory_bytes(info, limit) == 3000
