from collections.abc import Callable

import gguf
import numpy as np
import pytest
from gguf.quants import Q4_0
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from quant.codes.int4 import dequantize_int4, quantize_asym_int4, quantize_sym_int4
from quant.codes.matrix import F32, QuantizedMatrix
from quant.errors import TensorError
from quant.sources.ggml_blocks import BLOCK_TYPES

Quantizer = Callable[[str, NDArray[np.generic], int], QuantizedMatrix]

EPSILON_FP16 = 2.0**-11  # half a unit in the last place, relative
TINY_FP16 = 2.0**-25  # half of the smallest fp16 number


def random_matrix(rows: int = 48, cols: int = 256, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


def test_sym_follows_its_formula_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [-4.0, 4.0, 3.5, -0.25, 0.24, -3.76]
    matrix = quantize_sym_int4("w", x, 32)
    assert matrix.scales.tolist() == [[0.5]]
    # x / 0.5 + 8.5, cut: 0.5, 16.5 (clipped to 15), 15.5, 8.0, 8.98, 0.98
    assert matrix.codes[0, :7].tolist() == [0, 15, 15, 8, 8, 0, 8]


def test_sym_gives_the_signed_maximum_code_zero_whichever_sign_it_has() -> None:
    x = random_matrix()
    matrix = quantize_sym_int4("w", x, 64)
    groups = x.reshape(48, 4, 64)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    codes = np.take_along_axis(matrix.codes.reshape(48, 4, 64), np.abs(groups).argmax(-1, keepdims=True), -1)
    assert (codes == 0).all()
    assert np.array_equal(matrix.scales, (extreme[..., 0] / np.float32(-8)).astype(np.float16))
    assert set(np.unique(matrix.codes)) == set(range(16))


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_sym_takes_the_first_of_two_equal_magnitudes(first: float) -> None:
    x = np.full((1, 32), 0.125, np.float32)
    x[0, 3], x[0, 9] = first, -first
    assert quantize_sym_int4("w", x, 32).scales[0, 0] == first / -8


def test_asym_follows_its_formula() -> None:
    x = random_matrix()
    matrix = quantize_asym_int4("w", x, 64)
    groups = x.reshape(48, 4, 64).astype(np.float64)
    low, high = groups.min(-1), groups.max(-1)
    nd = 15 / (high - low)
    zp = np.floor(nd * low + 0.5)
    expected = np.clip(np.floor(nd[..., None] * groups + 0.5) - zp[..., None], 0, 15)
    codes = matrix.codes.reshape(48, 4, 64)
    on_edge = np.abs((nd[..., None] * groups) % 1 - 0.5) < 1e-5
    assert ((codes == expected) | on_edge).all()
    assert on_edge.mean() < 1e-3
    assert matrix.minima is not None
    np.testing.assert_allclose(matrix.minima, zp / nd, rtol=2 * EPSILON_FP16, atol=2 * TINY_FP16)
    assert codes.min() == 0
    assert codes.max() == 15


def test_asym_keeps_a_constant_group() -> None:
    x = np.full((1, 64), 0.75, np.float32)
    matrix = quantize_asym_int4("w", x, 64)
    assert np.array_equal(dequantize_int4(matrix), x)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_zero_groups_stay_zero(group: int) -> None:
    x = np.zeros((3, 256), np.float32)
    assert not dequantize_int4(quantize_sym_int4("w", x, group)).any()
    assert not dequantize_int4(quantize_asym_int4("w", x, group)).any()


groups_of_32 = arrays(np.float32, (2, 32), elements=st.floats(-1000, 1000, width=32))


@given(groups_of_32)
def test_sym_error_is_half_a_step_or_a_whole_one_where_clipped(x: F32) -> None:
    step = np.abs(x).max(-1, keepdims=True) / 8
    values = dequantize_int4(quantize_sym_int4("w", x, 32))
    limit = np.where(np.abs(x) > 7.5 * step, step, step / 2)
    assert (np.abs(values - x) <= limit * (1 + 1e-5) + 8 * step * EPSILON_FP16 + 8 * TINY_FP16).all()


@given(groups_of_32)
def test_asym_error_is_half_a_step_and_the_rounding_of_the_minimum(x: F32) -> None:
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    step = (high - low) / 15
    values = dequantize_int4(quantize_asym_int4("w", x, 32))
    rounding = (np.abs(low) + 16 * step) * 2 * EPSILON_FP16 + 32 * TINY_FP16
    assert (np.abs(values - x) <= step / 2 * (1 + 1e-5) + rounding + np.abs(x) * 1e-5).all()


def test_sym_codes_are_those_of_q4_0() -> None:
    x = random_matrix(256, 512)
    theirs = BLOCK_TYPES["Q4_0"].decode(gguf.quantize(x, gguf.GGMLQuantizationType.Q4_0))
    ours = quantize_sym_int4("w", x, 32)
    assert isinstance(theirs, QuantizedMatrix)
    assert np.array_equal(ours.scales, theirs.scales)
    assert np.array_equal(ours.codes, theirs.codes)
    assert np.array_equal(dequantize_int4(ours), Q4_0.dequantize_rows(gguf.quantize(x, gguf.GGMLQuantizationType.Q4_0)))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_sym_codes_survive_being_quantized_again(group: int) -> None:
    matrix = quantize_sym_int4("w", random_matrix(), group)
    again = quantize_sym_int4("w", dequantize_int4(matrix), group)
    assert np.array_equal(again.codes, matrix.codes)
    assert np.array_equal(again.scales, matrix.scales)


@pytest.mark.parametrize("quantize", [quantize_sym_int4, quantize_asym_int4])
class TestRefusals:
    def test_group_that_does_not_divide(self, quantize: Quantizer) -> None:
        with pytest.raises(TensorError, match=r"'model\.w'.*576.*128.*use 32 or 64"):
            quantize("model.w", np.zeros((2, 576), np.float32), 128)

    def test_nothing_divides(self, quantize: Quantizer) -> None:
        with pytest.raises(TensorError, match="no group size fits"):
            quantize("w", np.zeros((2, 40), np.float32), 32)

    def test_integers(self, quantize: Quantizer) -> None:
        with pytest.raises(TensorError, match=r"'w'.*int32 is not a floating-point"):
            quantize("w", np.zeros((2, 64), np.int32), 64)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, quantize: Quantizer, bad: float) -> None:
        x = np.ones((2, 64), np.float32)
        x[1, 5] = bad
        with pytest.raises(TensorError, match=r"'w'.*NaN or infinite"):
            quantize("w", x, 32)

    def test_scale_outside_fp16(self, quantize: Quantizer) -> None:
        x = np.array([[1e7] + [0] * 31], np.float32)
        with pytest.raises(TensorError, match=r"exceeds fp16's range"):
            quantize("w", x, 32)

    def test_vector(self, quantize: Quantizer) -> None:
        with pytest.raises(TensorError, match="1 dimensions"):
            quantize("w", np.zeros(64, np.float32), 64)
