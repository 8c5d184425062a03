import gguf
import numpy as np
import pytest

from quant.codes.int8 import dequantize_int8, quantize_activations, quantize_int8
from quant.codes.matrix import QuantizedMatrix
from quant.errors import TensorError
from quant.sources.ggml_blocks import BLOCK_TYPES


def test_codes_are_those_of_q8_0() -> None:
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    theirs = BLOCK_TYPES["Q8_0"].decode(gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0))
    ours = quantize_int8("w", x, 32)
    assert isinstance(theirs, QuantizedMatrix)
    assert np.array_equal(ours.scales, theirs.scales)
    assert np.array_equal(ours.codes, theirs.codes)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_error_is_half_a_step(group: int) -> None:
    x = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
    matrix = quantize_int8("w", x, group)
    assert matrix.codes.min() >= 1
    step = np.abs(x.reshape(16, -1, group)).max(-1, keepdims=True) / 127
    error = np.abs(dequantize_int8(matrix) - x).reshape(16, -1, group)
    assert (error <= step * (0.5 + 1e-5 + 127 * 2.0**-11)).all()


def test_zero_group() -> None:
    matrix = quantize_int8("w", np.zeros((1, 32), np.float32), 32)
    assert (matrix.codes == 128).all()
    assert not dequantize_int8(matrix).any()


def test_refuses_what_it_must() -> None:
    with pytest.raises(TensorError, match=r"'w'.*NaN"):
        quantize_int8("w", np.full((1, 32), np.nan, np.float32), 32)
    with pytest.raises(TensorError, match=r"'w'.*multiple"):
        quantize_int8("w", np.zeros((1, 33), np.float32), 32)


def test_activations() -> None:
    x = np.array([[0.0] * 32 + [127.0, -127.0, 2.5, 3.5, -0.5] + [0.0] * 27], np.float32)
    values, scales, sums = quantize_activations(x, 32)
    assert scales.tolist() == [[0.0, 1.0]]
    assert values[0, 32:37].tolist() == [127, -127, 2, 4, 0]  # ties to even
    assert sums.tolist() == [[0, 6]]
