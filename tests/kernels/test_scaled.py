"""add_scaled, scale and softcap against float64, and tiers bit for bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing

ROUNDING = 2.0**-24
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 640, 4099)
ODD = [0, 1e-45, 1e-40, 1.1754944e-38, 1e-30, 1, 30, 1e19, 3.4e38, np.inf]

F32 = NDArray[np.float32]


def in_every_tier(op: str, x: F32, factor: float, y: F32 | None = None) -> F32:
    """What x, or y if there is one, becomes; the values around it must stay."""
    results = []
    for tier in _native.available_tiers():
        memory = np.full(x.size + 32, 777, np.float32)
        memory[3 : 3 + x.size] = x if y is None else y
        target = memory[3 : 3 + x.size]
        if y is None:
            getattr(testing, op)(target, factor, tier)
        else:
            getattr(testing, op)(x, factor, target, tier)
        assert (memory[:3] == 777).all()
        assert (memory[3 + x.size :] == 777).all()
        results.append(target)
    for result in results[1:]:
        assert np.array_equal(result, results[0], equal_nan=True)
    return results[0]


@pytest.mark.parametrize("n", SIZES)
def test_add_scaled_rounds_once(n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n), np.float32)
    factor = np.float32(0.3)
    # The product of two floats is exact in float64; the sum's rounding there may move fp32's by a little over a half.
    expected = x.astype(np.float64) * float(factor) + y
    out = in_every_tier("add_scaled", x, float(factor), y)
    assert (np.abs(out - expected) <= 1.0001 * ROUNDING * np.abs(expected)).all()


@pytest.mark.parametrize("n", SIZES)
def test_scale(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n, np.float32)
    assert np.array_equal(in_every_tier("scale", x, 25.25), x * np.float32(25.25))


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
@pytest.mark.parametrize("n", SIZES)
def test_softcap(n: int, cap: float) -> None:
    x = np.random.default_rng(n).standard_normal(n, np.float32) * np.float32(2 * cap)
    check_softcap(x, cap)


@pytest.mark.parametrize("cap", [1.0, 30.0])
def test_softcap_of_a_dense_sweep(cap: float) -> None:
    small = np.geomspace(1e-30, 1, 50_001)
    sweep = np.concatenate([np.linspace(-30, 30, 400_001), small, -small]) * cap
    check_softcap(sweep.astype(np.float32), cap)


def check_softcap(x: F32, cap: float) -> None:
    out = in_every_tier("softcap", x, cap)
    expected = cap * np.tanh(x.astype(np.float64) / cap)
    # 2^f - 1 is off by 6 units: f by 2, the fit and its steps by 3, the product with f by one. That is 10 at most in
    # e^(2 x) - 1, where the power of two that is added has the other sign, and 1 more for that sum; m / (m + 2) has
    # condition 2 at most, but then f's part is small. The sum, the quotient, x / cap and the product round once each.
    assert (np.abs(out - expected) <= 15 * ROUNDING * np.abs(expected)).all()
    assert (np.abs(out) <= cap).all()


def test_odd_values_are_the_same_in_every_tier() -> None:
    values = np.array([*ODD, *(-x for x in ODD), np.nan], np.float32)
    for factor in (0.0, 1e-40, 1.0, 30.0, -3.0, 3e38):
        in_every_tier("scale", values, factor)
        for shift in range(values.size):
            in_every_tier("add_scaled", values, factor, np.roll(values, shift))
    out = in_every_tier("softcap", values, 30.0)
    assert list(np.flatnonzero(np.isnan(out))) == [values.size - 1]
    assert list(out[[8, 9, 18, 19]]) == [30, 30, -30, -30]
