"""RMS norm and layer norm against float64, and tiers bit for bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing

ROUNDING = 2.0**-24
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 576, 577, 896, 4096, 5001)

F32 = NDArray[np.float32]


@pytest.mark.parametrize("n", SIZES)
def test_every_tier(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((4, n), np.float32) * np.array([[1e-3], [1], [30], [1e4]], np.float32)
    weight = rng.standard_normal(n, np.float32)
    scalar = testing.rms_norm(x, weight, 1e-5, "scalar")
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    # Squares are summed without cancellation in 64 lanes: at most n / 64 + 7 roundings, halved by the root. Then mean,
    # epsilon, root, reciprocal and two products round once each; epsilon itself is rounded to fp32.
    bound = (0.5 * (n / 64 + 7 + 3) + 5) * ROUNDING * np.abs(expected)
    assert (np.abs(scalar - expected) <= bound).all()
    for tier in _native.available_tiers()[1:]:
        assert np.array_equal(testing.rms_norm(x, weight, 1e-5, tier), scalar)


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_zeros_stay_zeros_and_nan_shows(tier: str) -> None:
    x = np.zeros((2, 70), np.float32)
    x[1, 69] = np.nan
    out = testing.rms_norm(x, np.ones(70, np.float32), 1e-6, tier)
    assert (out[0] == 0).all()
    assert np.isnan(out[1]).all()


def layer_norm_in_every_tier(x: F32, weight: F32, bias: F32 | None) -> F32:
    scalar = testing.layer_norm(x, weight, bias, 1e-5, "scalar")
    for tier in _native.available_tiers()[1:]:
        assert np.array_equal(testing.layer_norm(x, weight, bias, 1e-5, tier), scalar, equal_nan=True)
    return scalar


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_layer_norm_in_every_tier(n: int, biased: bool) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((5, n), np.float32) * np.array([[1e-3], [1], [30], [1e4], [1]], np.float32)
    x += np.array([[1e-3], [0], [-5], [3e4], [100]], np.float32)
    weight = rng.standard_normal(n, np.float32)
    bias = rng.standard_normal(n, np.float32) if biased else None
    out = layer_norm_in_every_tier(x, weight, bias)

    wide = x.astype(np.float64)
    mean = wide.mean(-1, keepdims=True)
    difference = wide - mean
    deviation = np.sqrt((difference**2).mean(-1, keepdims=True) + 1e-5)
    normal = difference / deviation
    expected = normal * weight + (0 if bias is None else bias)
    # The mean is off by its sum's roundings, of which a lane has n / 64 and the halves 6, and by the division's. So far
    # off is a difference, beside its own rounding. The mean square is off by the square of that, as differences sum to
    # 0, and by its roundings, halved by the root. Epsilon, the root, the reciprocal and three products round once each.
    steps = n / 64 + 6
    off_mean = (steps + 1) * ROUNDING * np.abs(wide).mean(-1, keepdims=True)
    off_inverse = 0.5 * (steps + 5) * ROUNDING + (off_mean / deviation) ** 2
    off_difference = off_mean + ROUNDING * np.abs(difference)
    bound = (off_difference / deviation + (off_inverse + 5 * ROUNDING) * np.abs(normal)) * np.abs(weight)
    assert (np.abs(out - expected) <= bound + ROUNDING * np.abs(expected)).all()


@pytest.mark.parametrize("n", [1, 5, 16, 70, 129])
def test_layer_norm_of_equal_values_is_the_bias(n: int) -> None:
    weight, bias = np.full(n, 3, np.float32), np.arange(n, dtype=np.float32)
    x = np.full((3, n), 0.25, np.float32) * np.array([[1], [0], [-4096]], np.float32)
    assert (layer_norm_in_every_tier(x, weight, bias) == bias).all()
    assert (layer_norm_in_every_tier(x, weight, None) == 0).all()


def test_layer_norm_shows_what_is_not_finite() -> None:
    x = np.ones((4, 70), np.float32)
    x[0, 69], x[1, 0], x[2, 7] = np.nan, np.inf, -np.inf
    x[3] = 3e38  # the sum overflows
    ones = np.ones(70, np.float32)
    assert np.isnan(layer_norm_in_every_tier(x, ones, None)).all()
    assert np.isnan(layer_norm_in_every_tier(x, ones, ones)).all()


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_rows_may_begin_anywhere(tier: str) -> None:
    memory = np.random.default_rng(0).standard_normal(3 * 128, np.float32)
    for begin in range(1, 17):
        x, weight, bias = memory[None, begin : begin + 83], memory[129 : 129 + 83], memory[258 : 258 + 83]
        aligned = testing.layer_norm(x.copy(), weight.copy(), bias.copy(), 1e-5, tier)
        assert np.array_equal(testing.layer_norm(x, weight, bias, 1e-5, tier), aligned)
        rms = testing.rms_norm(x.copy(), weight.copy(), 1e-5, tier)
        assert np.array_equal(testing.rms_norm(x, weight, 1e-5, tier), rms)
