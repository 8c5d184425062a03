"""Conversions that calibrate: what they gain, that a killed one goes on to the same result, and what they refuse."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import quant.codes.lut4 as lut4_module
import quant.conversion.calibrated as module
from quant.calibration import layers, one_pass, tuning, whole_layers
from quant.calibration.layers import run_layer
from quant.calibration.text import calibration_windows
from quant.calibration.work_folder import work_folder
from quant.codes.lut4 import TABLES
from quant.conversion.calibrated import calibrate, windows_for
from quant.conversion.convert import convert
from quant.conversion.pieces import PieceMaker
from quant.conversion.plan import calibrated_type, matrix_info
from quant.errors import QuantError, SourceError, TensorError
from quant.families.description import Attention, Decoder, Experts, Layer, Mlp, Rope
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.packed.packed_file import PackedFile
from quant.packed.packed_matrix import unpacked
from quant.sources.source import Source, SourceTensor
from tests.kernels.tiny_model import Sequences, described_tensors, write_described
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

LAYERS = 3
SMALL = {**CONFIG, "num_hidden_layers": LAYERS}
TEXT = "the quick brown fox jumps over the lazy dog; 0123456789 pack my box with five dozen liquor jugs.\n"


def small_tensors() -> dict[str, NDArray[np.float32]]:
    """Weights as trained ones are: outputs as large as inputs, some inputs much stronger than others."""
    generator = np.random.default_rng(3)
    tensors = random_tensors(SMALL)
    for name, values in tensors.items():
        if values.ndim == 1:
            tensors[name] = np.exp(0.7 * generator.standard_normal(values.shape)).astype(np.float32)
        elif "layers" in name:
            tensors[name] = values / np.float32(0.5 * np.sqrt(values.shape[1]))
    return tensors


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    return write_hf_folder(tmp_path / "hf", small_tensors(), SMALL)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    (tmp_path / "text.txt").write_text("".join(generator.permutation(list(TEXT * 60))))
    return tmp_path / "text.txt"


def converted(source: Path, out: Path, text: Path, method: str, **options: Any) -> bytes:
    convert(source, out, method=method, calibration_text=text, progress=False, **options)
    return (out / "model.safetensors").read_bytes()


def logits(folder: Path, text: Path) -> NDArray[np.float32]:
    ids = calibration_windows(folder, text, windows=1, tokens=200)[0]
    return Sequences(folder).logits({0: [int(token) for token in ids]})


def test_calibrated_methods_come_nearer_to_the_original(hf_folder: Path, tmp_path: Path, text: Path) -> None:
    convert(hf_folder, tmp_path / "fp32", qtype="fp32", progress=False)
    truth = logits(tmp_path / "fp32", text)
    errors = {}
    for method in ("rtn", "quick", "gptq", "tuned"):
        converted(hf_folder, tmp_path / method, text, method, head_qtype="fp32")
        errors[method] = float(np.linalg.norm(logits(tmp_path / method, text) - truth))
    assert max(errors["quick"], errors["gptq"], errors["tuned"]) < 0.8 * errors["rtn"]


@pytest.mark.parametrize("method", ["quick", "scale", "gptq", "signround"])
def test_a_killed_conversion_goes_on_to_the_same_bytes(
    hf_folder: Path, tmp_path: Path, text: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEPS", 5)
    whole = converted(hf_folder, tmp_path / "whole", text, method)
    layers_run: list[int] = []

    runs = {"signround": (whole_layers, "run_whole_layer"), "quick": (one_pass, "run_layer_once")}
    part, name = runs.get(method, (layers, "run_layer"))
    original = getattr(part, name)

    def killed_at(layer: int) -> Callable[..., None]:
        def run(number: int, *arguments: Any) -> None:
            layers_run.append(number)
            if number == layer:
                raise KeyboardInterrupt
            original(number, *arguments)

        return run

    for layer in (1, 2, LAYERS):
        monkeypatch.setattr(module, name, killed_at(layer))
        if layer < LAYERS:
            with pytest.raises(KeyboardInterrupt):
                converted(hf_folder, tmp_path / "out", text, method)
            assert not (tmp_path / "out").exists()
    again = converted(hf_folder, tmp_path / "out", text, method)
    assert layers_run == [0, 1, 1, 2, 2]
    assert again == whole
    assert not list(tmp_path.glob(".out*"))


def test_a_killed_tuning_goes_on_to_the_same_bytes(
    hf_folder: Path, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "BATCH_WINDOWS", 2)
    whole = converted(hf_folder, tmp_path / "whole", text, "tuned")
    steps_taken: list[int] = []

    def killed(student: Any, lesson: Any, number: int, steps: Any) -> float:
        steps_taken.append(number)
        if steps_taken.count(number) == 1:  # each step dies once before it begins
            raise KeyboardInterrupt
        return tuning.tune_step(student, lesson, number, steps)

    monkeypatch.setattr("quant.conversion.tuned.tune_step", killed)
    again = None
    while again is None:
        with contextlib.suppress(KeyboardInterrupt):
            again = converted(hf_folder, tmp_path / "out", text, "tuned")
    assert again == whole
    assert len(steps_taken) > 2
    assert steps_taken == [i // 2 for i in range(len(steps_taken))]


def test_tuning_moves_scales_and_norms_a_little_and_no_codes(
    hf_folder: Path, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted(hf_folder, tmp_path / "tuned", text, "tuned")
    monkeypatch.setattr(tuning, "STEP", 0.0)
    converted(hf_folder, tmp_path / "gptq", text, "tuned")
    file, before = (PackedFile(tmp_path / name / "model.safetensors") for name in ("tuned", "gptq"))
    for name in (name for name in file.matrices if "layers" in name):
        assert np.array_equal(file.codes(name).codes, before.codes(name).codes)
        moved = np.abs(file.codes(name).scales - before.codes(name).scales).astype(np.float32)
        assert 0 < moved.max() < 0.05 * np.abs(before.codes(name).scales.astype(np.float32)).max()
    assert not np.array_equal(file.vector("model.norm.weight"), before.vector("model.norm.weight"))


def test_other_options_do_not_go_on(
    hf_folder: Path, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(number: int, *arguments: Any) -> None:
        if number:
            raise KeyboardInterrupt
        run_layer(number, *arguments)

    monkeypatch.setattr(module, "run_layer", dies)
    with pytest.raises(KeyboardInterrupt):
        converted(hf_folder, tmp_path / "out", text, "gptq")
    monkeypatch.setattr(module, "run_layer", run_layer)
    fresh = converted(hf_folder, tmp_path / "fresh", text, "scale")
    assert converted(hf_folder, tmp_path / "out", text, "scale") == fresh


def test_the_default_calibrates_four_bits_only(
    hf_folder: Path, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quant.conversion.convert.calibrated_type", lambda tier: "lut4")
    assert convert(hf_folder, tmp_path / "int8", qtype="int8", progress=False).method == "rtn"
    assert convert(hf_folder, tmp_path / "nearest", method="rtn", progress=False).qtype == "sym_int4"
    report = convert(hf_folder, tmp_path / "auto", calibration_text=text, progress=False)
    assert (report.method, report.qtype, report.group_size) == ("quick", "lut4", 64)
    assert report.bits_per_weight == pytest.approx(8 * report.size_bytes / report.weights)


def test_calibrated_codes_are_lut4_only_where_the_processor_has_vnni() -> None:
    tiers = ("scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx_int8")
    assert [calibrated_type(tier) for tier in tiers] == ["sym_int4", "sym_int4", "lut4", "sym_int4", "lut4", "lut4"]


MIXED = Attention(0.25, window=24, softcap=20.0, qk_norm="head")
GELU = Mlp(64, "gelu_erf", gated=False, bias=True)
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "windows, soft caps and four norms": {
        "kinds": (Layer(MIXED, Mlp(192, "gelu_tanh"), attention_output_norm=True, mlp_output_norm=True),),
        "embedding_scale": 8.0,
    },
    "parallel with biases": {
        "kinds": (Layer(Attention(0.25, qkv_bias=True, output_bias=True), GELU, mlp_norm=False, parallel=True),),
        "norm": "layer",
        "norm_bias": True,
        "embedding_norm": True,
    },
    "norms of sums, learned positions": {
        "kinds": (
            Layer(
                Attention(0.25, rope=None, qkv_bias=True, output_bias=True), Mlp(64, "relu", gated=False, bias=True),
                attention_norm=False, attention_output_norm=True, mlp_norm=False, mlp_output_norm=True, norms_sum=True,
            ),
        ),
        "norm": "layer",
        "norm_bias": True,
        "learned_positions": True,
    },
    "experts": {"kinds": (Layer(Attention(0.25), experts=Experts(8, 2, 64, renormalize=True, shared_inner=64)),)},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_layers_of_any_kind_are_calibrated(name: str, tmp_path: Path) -> None:
    """The logits' error of a random model whose inputs have some strong directions, as trained ones have."""
    frequencies = tuple(10000.0 ** (-i / 8) for i in range(8))
    decoder = Decoder(
        vocab_size=192, hidden_size=64, max_positions=512, heads=4, kv_heads=2, head_dim=16, layers=(0, 0),
        ropes=(Rope(16, frequencies),), **OTHERS[name],
    )  # fmt: skip
    tensors = described_tensors(decoder)
    strong = np.exp(np.random.default_rng(5).standard_normal(64)).astype(np.float32)
    norms = "output_norm.weight" if decoder.kinds[0].norms_sum else "layernorm.weight"
    for norm in (each for each in tensors if each.endswith(norms)):
        tensors[norm] = strong
    ids = np.random.default_rng(6).integers(0, 192, (40, 96)).astype(np.int32)
    held_out = [int(token) for token in np.random.default_rng(7).integers(0, 192, 96)]
    stored = {
        each: SourceTensor(each, values.shape, "fp32", 0, lambda begin, end, v=values: v[begin:end])  # type: ignore[misc]
        for each, values in tensors.items()
    }
    source = Source("test", {}, decoder, stored, (), lambda folder: None)
    expected = engine_tensors(decoder)
    infos = {
        each: matrix_info(each, "sym_int4" if t.role == "linear" else "fp32", t, 32)
        for each, t in expected.items()
        if t.role != "vector"
    }
    vectors = {each: tensors[each] for each, t in expected.items() if t.role == "vector"}
    maker = PieceMaker(source, "group", frozenset())
    truth = Sequences(write_described(tmp_path / "exact", decoder, {}, tensors)).logits({0: held_out})
    errors = {}
    for method in ("rtn", "quick", "gptq"):
        linear = {n: info for n, info in infos.items() if expected[n].role == "linear"}
        chosen = {n: unpacked(maker.piece(n, info, 0, info.rows), info) for n, info in linear.items()}
        if method != "rtn":
            with work_folder(tmp_path / method, method) as work:
                calibrate(source, infos, vectors, method, ids, maker.piece, work, progress=False)
                chosen = {n: unpacked(np.asarray(work.load(n)), info) for n, info in linear.items()}
        folder = write_described(tmp_path / f"{method}-model", decoder, {}, {**tensors, **chosen})
        errors[method] = float(np.linalg.norm(Sequences(folder).logits({0: held_out}) - truth))
    assert max(errors["quick"], errors["gptq"]) < 0.9 * errors["rtn"]


@pytest.mark.parametrize("qtype", TABLES)
def test_a_budget_is_allotted_by_the_table_that_is_stored(
    hf_folder: Path, tmp_path: Path, text: Path, qtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, blocks = [], lut4_module.lut4_blocks

    def recorded(name: str, x: NDArray[np.float32], table: tuple[int, ...]) -> object:
        used.append(table)
        return blocks(name, x, table)

    monkeypatch.setattr(lut4_module, "lut4_blocks", recorded)
    converted(hf_folder, tmp_path / "out", text, "rtn", qtype=qtype, bits=5.0)
    stored = {info.table for info in PackedFile(tmp_path / "out" / "model.safetensors").matrices.values()} - {None}
    assert stored == set(used) == {TABLES[qtype]}


@pytest.mark.parametrize(("qtype", "bits"), [("auto", 4.3), ("auto", 5.0), ("auto", 7.5), ("lut4", 5.0)])
def test_a_budget_of_bits(hf_folder: Path, tmp_path: Path, text: Path, qtype: str, bits: float) -> None:
    converted(hf_folder, tmp_path / "out", text, "gptq", qtype=qtype, bits=bits)
    file = PackedFile(tmp_path / "out/model.safetensors")
    layers = [info for name, info in file.matrices.items() if "layers" in name]
    spent = 8 * sum(info.size_bytes for info in layers) / sum(info.rows * info.cols for info in layers)
    assert bits - 0.3 < spent <= bits
    assert len({(info.type, info.group) for info in layers}) > 1
    assert np.isfinite(logits(tmp_path / "out", text)).all()


@pytest.mark.parametrize("extent", ["channel", "tensor"])
@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "nf4", "int8"])
def test_coarse_scales(hf_folder: Path, tmp_path: Path, extent: str, qtype: str) -> None:
    report = convert(hf_folder, tmp_path / "out", qtype=qtype, extent=extent, progress=False)
    assert report.method == "rtn"
    file = PackedFile(tmp_path / "out/model.safetensors")
    for name, info in file.matrices.items():
        if "layers" in name:
            scales = file.codes(name).scales
            assert info.group == (64 if info.cols == 192 else 128)
            assert (scales == (scales[:, :1] if extent == "channel" else scales[0, 0])).all()
    assert np.isfinite(Sequences(tmp_path / "out").logits({0: [5, 6, 7]})).all()


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, text: Path) -> None:
    tensors = small_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    folder = write_hf_folder(tmp_path / "bad", tensors, SMALL)
    with pytest.raises(TensorError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight': holds NaN or infinite"):
        converted(folder, tmp_path / "out", text, "gptq")
    assert not (tmp_path / "out").exists()


def test_options_that_do_not_go_together_are_refused(hf_folder: Path, tmp_path: Path, text: Path) -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(QuantError, match=match):
            convert(hf_folder, tmp_path / "out", calibration_text=text, progress=False, **options)
        assert not (tmp_path / "out").exists()

    refused("method 'best' is not one of auto, rtn, scale, quick, gptq, signround, tuned", method="best")
    refused("signround", method="signround", qtype="nf4")
    refused("extent 'row' is not one of", extent="row")
    refused("a scale per channel is rounded to nearest", extent="channel", qtype="sym_int4", method="gptq")
    refused("a scale per tensor needs an integer qtype", extent="tensor", qtype="bf16")
    refused("a budget of bits needs a 4-bit qtype, not 'int8'", qtype="int8", bits=5.0)
    refused("bits 3: the layers take at least 4", bits=3.0)
    window = {**SMALL, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 64}
    windowed = write_hf_folder(tmp_path / "windowed", small_tensors(), window)
    for method in ("tuned", "signround"):
        with pytest.raises(QuantError, match=f"method '{method}' knows only layers like Llama's, .*: use gptq"):
            convert(windowed, tmp_path / "out", method=method, calibration_text=text, progress=False)
    with pytest.raises(QuantError, match=r"a budget of bits knows only layers like Llama's"):
        convert(windowed, tmp_path / "out", bits=5.0, calibration_text=text, progress=False)
    text.write_text("too short")
    with pytest.raises(SourceError, match=r"text\.txt: is 9 tokens long"):
        convert(hf_folder, tmp_path / "out", calibration_text=text, progress=False)


def test_windows_follow_the_models_size(hf_folder: Path, tmp_path: Path) -> None:
    convert(hf_folder, tmp_path / "out", method="rtn", progress=False)
    small = windows_for(describe({**SMALL, "max_position_embeddings": 100}, "x"), tmp_path / "out", None)
    assert small.shape[1] == 100
    large = windows_for(
        describe({**SMALL, "hidden_size": 4096, "intermediate_size": 11008}, "x"), tmp_path / "out", None
    )
    assert large.size <= 1 << 14
