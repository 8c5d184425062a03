"""Stacks of MXFP4 in a safetensors file: read by rows, and what does not fit together refused by name."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from quant.codes.matrix import QuantizedMatrix
from quant.errors import SourceError, TensorError
from quant.files.safetensors_file import read_header
from quant.sources.mxfp4_experts import is_mxfp4, mxfp4_stacks
from quant.sources.packed_layers import StoredIn
from quant.sources.source import SourceTensor

Arrays = dict[str, NDArray[np.generic]]
BLOCKS = np.random.default_rng(0).integers(0, 256, (3, 10, 2, 16), np.uint8)
SCALES = np.random.default_rng(1).integers(110, 130, (3, 10, 2), np.uint8)


def _stacks(folder: Path, tensors: Arrays) -> dict[str, SourceTensor]:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return mxfp4_stacks({name: StoredIn(path, name, each) for name, each in read_header(path)[0].items()})


def test_rows_run_through_all_experts(tmp_path: Path) -> None:
    stacks = _stacks(tmp_path, {"e.w_blocks": BLOCKS, "e.w_scales": SCALES, "other": np.ones(3, np.float32)})
    assert list(stacks) == ["e.w_blocks"]
    tensor = stacks["e.w_blocks"]
    assert (tensor.shape, tensor.stored, tensor.group) == ((3, 10, 64), "lut4", 32)
    rows = tensor.read(8, 23)
    assert isinstance(rows, QuantizedMatrix)
    packed = BLOCKS.reshape(30, 32)[8:23]
    np.testing.assert_array_equal(rows.codes[:, ::2], packed & 15)
    np.testing.assert_array_equal(rows.codes[:, 1::2], packed >> 4)
    np.testing.assert_array_equal(rows.scales, 2.0 ** (SCALES.reshape(30, 2)[8:23].astype(np.float64) - 128))


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"w_blocks": BLOCKS}, "has no exponents"),
        ({"w_blocks": BLOCKS[..., :8], "w_scales": SCALES}, "'w_blocks' is U8"),
        ({"w_blocks": BLOCKS[0], "w_scales": SCALES}, "'w_blocks' is U8"),
        ({"w_blocks": BLOCKS.astype(np.float32), "w_scales": SCALES}, "'w_blocks' is F32"),
        ({"w_blocks": BLOCKS, "w_scales": SCALES[:2]}, "'w_scales' is U8"),
        ({"w_blocks": BLOCKS, "w_scales": SCALES.astype(np.float16)}, "'w_scales' is F16"),
    ],
)
def test_what_does_not_fit_is_named(tensors: Arrays, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=problem):
        _stacks(tmp_path, {name: np.ascontiguousarray(each) for name, each in tensors.items()})


def test_a_scale_outside_fp16_is_named_when_it_is_read(tmp_path: Path) -> None:
    scales = SCALES.copy()
    scales[2, 3, 1] = 200
    tensor = _stacks(tmp_path, {"w_blocks": BLOCKS, "w_scales": scales})["w_blocks"]
    tensor.read(0, 23)
    with pytest.raises(TensorError, match=r"2\^73"):
        tensor.read(23, 24)


@pytest.mark.parametrize("other", [None, {}, {"quant_method": "fp8"}, "mxfp4"])
def test_other_quantizations_are_not_taken_for_it(other: object) -> None:
    assert is_mxfp4({"quant_method": "mxfp4"})
    assert not is_mxfp4(other)
