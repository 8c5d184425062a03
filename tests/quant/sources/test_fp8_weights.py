"""FP8 weights in a safetensors file: read by rows with their scales, and what does not fit together refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn
from numpy.typing import NDArray
from safetensors.numpy import save_file

from quant.codes.fp8 import e4m3_to_fp32
from quant.conversion.convert import convert
from quant.errors import SourceError, TensorError, UnsupportedModelError
from quant.files.safetensors_file import read_header
from quant.sources.fp8_weights import fp8_weights, is_fp8
from quant.sources.open_source import open_source
from quant.sources.packed_layers import StoredIn
from quant.sources.source import SourceTensor
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

BLOCKS = {"quant_method": "fp8", "weight_block_size": [16, 24]}
WHOLE = {"quant_method": "fp8", "weight_block_size": None}
ROWS = {"quant_method": "compressed-tensors", "format": "float-quantized"}
FINITE = np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])


def random_codes(*shape: int) -> NDArray[Any]:
    return np.random.default_rng(0).choice(FINITE, shape).view(float8_e4m3fn)


def random_scales(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(0.001, 2, shape).astype(np.float32)


def opened(folder: Path, tensors: dict[str, NDArray[Any]], quantization: dict[str, Any]) -> dict[str, SourceTensor]:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    stored = {name: StoredIn(path, name, each) for name, each in read_header(path)[0].items()}
    return fp8_weights(stored, quantization, "config.json")[0]


def test_codes_are_widened_as_ml_dtypes_does() -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(e4m3_to_fp32(codes), codes.view(float8_e4m3fn).astype(np.float32))


@pytest.mark.parametrize(
    ("quantization", "shape", "scales", "of_element"),
    [
        (BLOCKS, (40, 50), (3, 3), lambda row, col: (row // 16, col // 24)),
        (BLOCKS, (16, 24), (1, 1), lambda row, col: (0, 0)),
        ({**BLOCKS, "weight_block_size": [16, 2**60]}, (40, 50), (3, 1), lambda row, col: (row // 16, 0)),
        (BLOCKS, (3, 40, 50), (3, 3, 3), lambda row, col: (row // 40, row % 40 // 16, col // 24)),
        (WHOLE, (40, 50), (), lambda row, col: ()),
        (WHOLE, (40, 50), (1,), lambda row, col: (0,)),
        (WHOLE, (3, 40, 50), (3, 1, 1), lambda row, col: (row // 40, 0, 0)),
        (WHOLE, (3, 40, 50), (), lambda row, col: ()),
        (ROWS, (40, 50), (40, 1), lambda row, col: (row, 0)),
        (ROWS, (3, 40, 50), (3, 40, 1), lambda row, col: (row // 40, row % 40, 0)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.float16])
def test_each_element_has_its_scale(
    quantization: dict[str, Any], shape: tuple[int, ...], scales: tuple[int, ...], of_element: Any, dtype: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    codes, factors = random_codes(*shape), random_scales(*scales).astype(dtype)
    suffix = "_scale" if quantization is ROWS else "_scale_inv"
    (tensor,) = opened(tmp_path, {"l.weight": codes, f"l.weight{suffix}": factors}, quantization).values()
    assert (tensor.name, tensor.shape, tensor.stored) == ("l.weight", shape, "fp8")
    rows = codes.astype(np.float32).reshape(-1, shape[-1])
    expected = [
        [value * np.float32(factors[of_element(row, col)]) for col, value in enumerate(values)]
        for row, values in enumerate(rows)
    ]
    for begin, end in ((0, len(rows)), (7, 8), (13, len(rows) - 1), (len(rows) - 3, len(rows))):
        np.testing.assert_array_equal(tensor.read(begin, end), np.array(expected[begin:end], np.float32))


CODES, SCALES = random_codes(40, 50), random_scales(3, 3)


@pytest.mark.parametrize(
    ("tensors", "quantization", "problem"),
    [
        ({"w": CODES}, BLOCKS, r"'w' is F8_E4M3 and has no scales beside it \(_scale_inv or _scale\)"),
        ({"w": CODES[0], "w_scale_inv": SCALES}, BLOCKS, r"'w' has the shape \(50,\), neither a matrix nor a stack"),
        ({"w": CODES, "w_scale_inv": SCALES[:2]}, BLOCKS, r"'w_scale_inv' has the shape \(2, 3\); .* of 16 by 24"),
        ({"w": CODES, "w_scale_inv": SCALES[0]}, BLOCKS, r"'w_scale_inv' has the shape \(3,\)"),
        ({"w": random_codes(4, 4, 5), "w_scale": random_scales(4, 1)}, WHOLE, r"has the shape \(4, 1\)"),
        ({"w": CODES, "w_scale_inv": SCALES}, WHOLE, r"'w_scale_inv' has the shape \(3, 3\); .* for rows"),
        ({"w": random_codes(3, 4, 5), "w_scale": random_scales(2, 1, 1)}, WHOLE, r"has the shape \(2, 1, 1\)"),
        ({"w": CODES, "w_scale_inv": np.ones((3, 3), np.uint8)}, BLOCKS, "'w_scale_inv' is U8, not F32, F16 or BF16"),
        ({}, {**BLOCKS, "weight_block_size": [128]}, r"config.json: its FP8 blocks are \[128\], not two positive"),
        ({}, {**BLOCKS, "weight_block_size": [128, 0]}, "not two positive numbers"),
        ({}, {**BLOCKS, "weight_block_size": 128}, "not two positive numbers"),
        (
            {},
            {**ROWS, "config_groups": {str(n): {"weights": {"block_structure": [n, n]}} for n in (64, 128)}},
            "blocks of several sizes",
        ),
        ({}, {**ROWS, "config_groups": [1]}, "config_groups are .*, not an object"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    tensors: dict[str, NDArray[Any]], quantization: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=problem):
        opened(tmp_path, tensors, quantization)


@pytest.mark.parametrize("other", [None, {}, "fp8", {"quant_method": "gptq"}, {"quant_method": "compressed-tensors"}])
def test_other_quantizations_are_not_taken_for_it(other: object) -> None:
    assert is_fp8(BLOCKS)
    assert is_fp8(ROWS)
    assert not is_fp8(other)


def write_fp8_folder(folder: Path, quantization: dict[str, Any] | None = None, **changed: NDArray[Any]) -> None:
    """A tiny Llama whose layers are in FP8, with what authors store for activations and keys."""
    config = CONFIG if quantization is None else {**CONFIG, "quantization_config": quantization}
    write_hf_folder(folder, random_tensors(CONFIG), config)
    tensors: dict[str, NDArray[Any]] = {}
    for name, values in random_tensors(CONFIG).items():
        tensors[name] = values
        if name.endswith("_proj.weight"):
            layer, scale = name.removesuffix(".weight"), np.float32(np.abs(values).max() / 448)
            tensors[name] = (values / scale).astype(float8_e4m3fn)
            tensors |= {f"{name}_scale_inv": np.full(1, scale), f"{layer}.input_scale": np.ones(1, np.float32)}
    for kind in "kv":
        tensors[f"model.layers.0.self_attn.{kind}_scale"] = np.ones(1, np.float32)
    save_file(tensors | changed, folder / "model.safetensors")


def test_a_folder_is_quantized_as_floats_are(tmp_path: Path) -> None:
    write_fp8_folder(tmp_path / "hf", WHOLE)
    tensors = open_source(tmp_path / "hf").tensors
    assert {each.stored for name, each in tensors.items() if name.endswith("_proj.weight")} == {"fp8"}
    report = convert(tmp_path / "hf", tmp_path / "packed", method="rtn", progress=False)
    assert report.qtype == "sym_int4"


def test_without_a_configuration_scales_are_unknown(tmp_path: Path) -> None:
    write_fp8_folder(tmp_path / "hf")
    with pytest.raises(
        SourceError, match=r"is F8_E4M3, and no quantization_config of method fp8 says how it is scaled"
    ):
        open_source(tmp_path / "hf")


def test_a_weight_that_is_no_number(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    codes = np.full(random_tensors(CONFIG)[name].shape, 0x7F, np.uint8).view(float8_e4m3fn)
    write_fp8_folder(tmp_path / "hf", WHOLE, **{name: codes})
    with pytest.raises(TensorError, match=rf"{name}.*NaN"):
        convert(tmp_path / "hf", tmp_path / "packed", method="rtn", progress=False)


def test_fbgemms_kind_is_not_read(tmp_path: Path) -> None:
    write_fp8_folder(tmp_path / "hf", {"quant_method": "fbgemm_fp8"})
    with pytest.raises(UnsupportedModelError, match=r"already quantized \(fbgemm_fp8\); use the original or a GGUF"):
        open_source(tmp_path / "hf")
