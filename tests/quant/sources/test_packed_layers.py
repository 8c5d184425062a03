"""GPTQ, AWQ and compressed-tensors checkpoints: codes kept where groups fit, values right in any case."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quant.codes.dequantize import dequantize
from quant.codes.matrix import QuantizedMatrix
from quant.conversion.convert import convert
from quant.errors import QuantError, SourceError, UnsupportedModelError
from quant.packed.packed_file import PackedFile
from quant.sources.open_source import open_source
from tests.quant.sources.packed_checkpoints import write_packed_folder

KINDS = ("gptq", "gptq_v2", "awq", "compressed-tensors")
DOWN = "model.layers.1.mlp.down_proj"


def allowed_error(values: np.ndarray, symmetric: bool) -> np.ndarray:
    """None, or the rounding of a minimum of at most 16 steps to fp16."""
    step = 0.02
    return np.zeros_like(values) if symmetric else np.full_like(values, 16 * step * 2.0**-11)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, 64, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_kept(tmp_path: Path, kind: str, group_size: int, symmetric: bool) -> None:
    folder, expected = write_packed_folder(tmp_path / "in", kind, group_size, symmetric=symmetric)
    source = open_source(folder)
    assert "quantization_config" not in source.config
    for name, values in expected.items():
        tensor = source.tensors[name]
        rows = tensor.read(0, values.shape[0])
        if not name.endswith("_proj.weight"):
            assert not isinstance(rows, QuantizedMatrix)
            assert np.array_equal(rows, values)
            continue
        assert isinstance(rows, QuantizedMatrix)
        assert rows.type == tensor.stored == ("sym_int4" if symmetric else "asym_int4")
        ours = dequantize(rows)
        assert (np.abs(ours - values) <= allowed_error(values, symmetric)).all(), name
        part = tensor.read(32, 61)
        assert isinstance(part, QuantizedMatrix)
        assert np.array_equal(dequantize(part), ours[32:61])


def test_the_packed_model_has_the_sources_codes(tmp_path: Path) -> None:
    folder, expected = write_packed_folder(tmp_path / "in", "gptq", 64, symmetric=True)
    report = convert(folder, tmp_path / "out", method="rtn", progress=False)
    assert (report.qtype, report.group_size) == ("sym_int4", 64)
    packed = PackedFile(tmp_path / "out/model.safetensors")
    for name, values in expected.items():
        if name.endswith("_proj.weight"):
            assert np.array_equal(packed.dequantize(name), values), name
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["gptq", "gptq_v2"])
def test_scattered_groups_are_read_as_values(tmp_path: Path, kind: str, symmetric: bool) -> None:
    folder, expected = write_packed_folder(tmp_path / "in", kind, 32, symmetric=symmetric, scattered=True)
    source = open_source(folder)
    tensor = source.tensors[f"{DOWN}.weight"]
    assert (tensor.stored, tensor.group) == ("other", 0)
    rows = tensor.read(0, 128)
    assert not isinstance(rows, QuantizedMatrix)
    assert np.array_equal(rows, expected[f"{DOWN}.weight"])
    convert(folder, tmp_path / "out", qtype="fp32", progress=False)
    packed = PackedFile(tmp_path / "out/model.safetensors")
    assert np.array_equal(packed.dequantize(f"{DOWN}.weight"), expected[f"{DOWN}.weight"])


def test_groups_that_no_type_of_ours_has_are_read_as_values(tmp_path: Path) -> None:
    folder, expected = write_packed_folder(tmp_path / "in", "awq", 16, symmetric=False)
    tensor = open_source(folder).tensors[f"{DOWN}.weight"]
    assert (tensor.stored, tensor.group) == ("other", 0)
    rows = tensor.read(0, 128)
    assert not isinstance(rows, QuantizedMatrix)
    assert np.array_equal(rows, expected[f"{DOWN}.weight"])


def test_older_checkpoints_keep_their_settings_in_a_file_of_their_own(tmp_path: Path) -> None:
    folder, expected = write_packed_folder(tmp_path / "in", "awq", 32, symmetric=False)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    (folder / "quant_config.json").write_text(json.dumps(settings))
    tensor = open_source(folder).tensors[f"{DOWN}.weight"]
    assert tensor.group == 32
    assert tensor.shape == expected[f"{DOWN}.weight"].shape


def test_a_bias_of_zeros_is_no_bias(tmp_path: Path) -> None:
    folder, _ = write_packed_folder(tmp_path / "in", "gptq", 32, symmetric=True)
    stored = load_file(folder / "model.safetensors")
    stored[f"{DOWN}.bias"] = np.zeros(128, np.float16)
    save_file(stored, folder / "model.safetensors")
    assert f"{DOWN}.bias" not in open_source(folder).tensors
    stored[f"{DOWN}.bias"][3] = 1
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(SourceError, match="does not use"):
        convert(folder, tmp_path / "out", method="rtn", progress=False)


DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "no scales": ({f"{DOWN}.scales": None}, "has no .*scales beside it"),
    "no zeros": ({f"{DOWN}.qzeros": None}, "has no .*qzeros beside it"),
    "scales of another shape": ({f"{DOWN}.scales": np.zeros((6, 64), np.float16)}, "does not fit"),
    "zeros of another shape": ({f"{DOWN}.qzeros": np.zeros((5, 16), np.int32)}, "does not fit"),
    "zeros of another type": ({f"{DOWN}.qzeros": np.zeros((6, 16), np.float32)}, "not 2-dimensional I32"),
    "codes of another type": ({f"{DOWN}.qweight": np.zeros((24, 128), np.int64)}, "not 2-dimensional I32"),
    "a group that is not there": ({f"{DOWN}.g_idx": np.full(192, 6, np.int32)}, "which of 6 groups"),
    "a negative group": ({f"{DOWN}.g_idx": np.full(192, -1, np.int32)}, "which of 6 groups"),
    "a short index": ({f"{DOWN}.g_idx": np.zeros(191, np.int32)}, "for 192 inputs"),
    "infinite scales": ({f"{DOWN}.scales": np.full((6, 128), np.inf, np.float16)}, "NaN or infinite"),
    "NaN scales": ({f"{DOWN}.scales": np.full((6, 128), np.nan, np.float32)}, "NaN or infinite"),
    "scales beyond fp16": ({f"{DOWN}.scales": np.full((6, 128), 1e9, np.float32)}, "NaN or infinite"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_layers_are_refused_by_name(tmp_path: Path, case: str) -> None:
    change, message = DAMAGE[case]
    folder, _ = write_packed_folder(tmp_path / "in", "gptq", 32, symmetric=True)
    stored = load_file(folder / "model.safetensors")
    for name, values in change.items():
        if values is None:
            del stored[name]
        else:
            stored[name] = values
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(QuantError, match=rf"{DOWN}.*{message}"):
        convert(folder, tmp_path / "out", method="rtn", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gptq", "bits": 8}, "gptq with bits 8"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "awq", "version": "gemv"}, "version 'gemv' is not supported; supported: gemm"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "format 'int-quantized'"),
        ({"quant_method": "hqq"}, "already quantized .hqq."),
    ],
)
def test_kinds_that_are_not_read(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder, _ = write_packed_folder(tmp_path / "in", "gptq", 32, symmetric=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    with pytest.raises(UnsupportedModelError, match=message):
        open_source(folder)


@pytest.mark.parametrize("group_size", [0, -2, "x", 2.5])
def test_group_sizes_that_are_none(tmp_path: Path, group_size: object) -> None:
    folder, _ = write_packed_folder(tmp_path / "in", "gptq", 32, symmetric=True)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = group_size
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match="group_size"):
        open_source(folder)


def test_what_requantizing_costs_is_told(tmp_path: Path) -> None:
    folder, expected = write_packed_folder(tmp_path / "in", "gptq", 32, symmetric=True, scattered=True)
    report = convert(folder, tmp_path / "out", qtype="sym_int4", group_size=64, method="rtn", progress=False)
    (note,) = (note for note in report.notes if "no equal" in note)
    packed = PackedFile(tmp_path / "out/model.safetensors")
    names = [name for name in expected if name.endswith("_proj.weight")]
    wrong = sum(((packed.dequantize(name)[:32] - expected[name][:32]) ** 2).sum() for name in names)
    relative = np.sqrt(wrong / sum((expected[name][:32] ** 2).sum() for name in names))
    assert f"14 matrices requantized as sym_int4, group 64, which moves the weights by {relative:.2%}" in note
