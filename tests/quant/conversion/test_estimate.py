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
from quant.calibration.layer_engine import LayerEngine
from quant.calibration.layer_file import LayerFile
from quant.calibration.layers import LayerWork, Streams, run_layer
from quant.calibration.work_folder import WorkFolder, work_folder_bytes
from quant.conversion import estimate, foretold
from quant.conversion.convert import convert
from quant.conversion.estimate import Plan, Speeds, duration
from quant.conversion.model_shape import ModelShape, StageShape
from quant.errors import ResourceError
from quant.families.description import Attention, Decoder, DeltaNet, Experts, Layer, Mlp, Rope
from quant.families.names import engine_tensors
from quant.packed.packed_matrix import MatrixInfo, pack_float
from tests.kernels.tiny_model import described_tensors
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

LAYERS = 3
WIDE = {**CONFIG, "num_hidden_layers": LAYERS, "hidden_size": 256, "intermediate_size": 512}
STAGES = (
    StageShape(512, 256, 3, 4, True),
    StageShape(256, 256, 1, 3, True),
    StageShape(1024, 256, 2, 2, True),
    StageShape(256, 512, 1, 1, True),
)
SHAPE = ModelShape((STAGES,) * 4, hidden=256, inner=512, heads=4, vocabulary=1000)
PLAN = Plan(SHAPE, "tuned", 512, 30, 20, 2 * 256 * 1000, 10**7, 10**6)
SPEEDS = Speeds(1e-11, 1e-11, 5e-12, 1e-9, (1e-6, 1e-9), 1e-8, 1e-9, 2)


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


@pytest.mark.parametrize("method", ["quick", "tuned"])
def test_the_counts_are_near_what_is_taken(
    method: str, source: Path, text: Path, tmp_path: Path, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, disk = tmp_path / "out", []
    finish = WorkFolder.finish_step

    def finish_step(work: WorkFolder, number: int) -> None:
        finish(work, number)
        disk.append(work_folder_bytes(out))

    monkeypatch.setattr(WorkFolder, "finish_step", finish_step)
    tracemalloc.start()
    try:
        convert(source, out, method=method, calibration_text=text, progress=False)
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
        replace(PLAN, shape=replace(SHAPE, stages=(STAGES,) * 8)),
    ):
        assert estimate.seconds(more, SPEEDS) > 1.01 * whole
    times = [estimate.seconds(PLAN, SPEEDS, done) for done in range(SHAPE.layers + 6)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    assert estimate.seconds(replace(PLAN, method="rtn"), SPEEDS) < 0.1 * whole


EXPERTS = Experts(8, 2, 64, shared_inner=96)
NARROW = {"vocab_size": 64, "hidden_size": 64, "max_positions": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}


@pytest.mark.parametrize(
    "kind",
    [
        Layer(Attention(0.25, rope=None), Mlp(160)),
        Layer(Attention(0.25), experts=EXPERTS),
        Layer(Attention(0.25, output_gate=True), Mlp(160)),
        Layer(delta=DeltaNet(2, 4, 16, 8), experts=EXPERTS),
    ],
)
def test_the_engines_work_is_what_is_counted(kind: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of both streams, from the places that each run of a layer goes to."""
    decoder = Decoder(**NARROW, kinds=(kind,), layers=(0,), ropes=(Rope(16, (1.0,) * 8),))  # type: ignore[arg-type]
    (stages,) = ModelShape.of(decoder).stages
    names = [n for n, t in engine_tensors(decoder).items() if t.role == "linear"]
    assert sum(stage.weights for stage in stages) == sum(np.prod(engine_tensors(decoder)[n].shape) for n in names)
    places = {"output_input": 1, "mlp_input": 2, "pairs": 2, "down_input": 3, "hidden": 4}  # stages that are computed
    runs = {True: np.zeros(4, int), False: np.zeros(4, int)}
    activations, made = LayerEngine.activations, LayerEngine.__init__

    def make(engine: LayerEngine, layer: LayerFile, window_tokens: int, *, exact: bool) -> None:
        made(engine, layer, window_tokens, exact=exact)
        engine.is_exact = exact  # type: ignore[attr-defined]

    def count(engine: Any, hidden: Any, wanted: Any) -> Any:
        runs[engine.is_exact][: max(places.get(name, 0) for name in wanted)] += 1
        return activations(engine, hidden, wanted)

    monkeypatch.setattr(LayerEngine, "__init__", make)
    monkeypatch.setattr(LayerEngine, "activations", count)
    tensors = described_tensors(decoder)
    infos = {
        n: MatrixInfo("fp32", t.shape[0], t.shape[1], 0, None, t.count)
        for n, t in engine_tensors(decoder).items()
        if t.role != "vector"
    }
    work = LayerWork(
        infos=infos, vectors={n: values for n, values in tensors.items() if values.ndim == 1},
        read=lambda name, begin, end: tensors[name][begin:end], as_is=frozenset(),
        pack=lambda name: pack_float(tensors[name], "fp32"), choose=lambda each: pack_float(each.weights, "fp32"),
        save=lambda name, packed: None,
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 32, 64)).astype(np.float32)
    run_layer(0, decoder, work, Streams(x, x.copy()))
    assert runs[True].tolist() == [1, 1, 1, 1]
    assert runs[False].tolist() == [stage.runs for stage in stages[:4]]


@pytest.mark.parametrize("method", ["rtn", "quick", "scale", "gptq", "signround", "tuned"])
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
