"""SiLU times up against float64, and tiers bit for bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing

ROUNDING = 2.0**-24


F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def reference(gate: F32, up: F32) -> F64:
    wide: F64 = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        silu: F64 = wide / (1 + np.exp(-wide))
    return silu * up


@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 17, 31, 33, 1536, 4099])
def test_every_tier(n: int) -> None:
    rng = np.random.default_rng(n)
    gate = rng.standard_normal((5, n), np.float32) * np.array([[0.01], [1], [5], [20], [60]], np.float32)
    up = rng.standard_normal((5, n), np.float32)
    scalar = testing.silu_mul(gate, up, "scalar")
    expected = reference(gate, up)
    # The exponential is off by 3 units (polynomial 1.4, its argument below 1), the sum, the quotient and the product by
    # one each; gates below -86 are cut off where silu is under 1e-35.
    bound = 6 * ROUNDING * np.abs(expected) + 1e-35 * np.abs(gate * up)
    assert (np.abs(scalar - expected) <= bound).all()
    for tier in _native.available_tiers()[1:]:
        assert np.array_equal(testing.silu_mul(gate, up, tier), scalar)


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_extremes(tier: str) -> None:
    gate = np.array([[0, -0.0, 1e30, -1e30, 88, -88, 3e38, np.inf, np.nan]], np.float32)
    out = testing.silu_mul(gate, np.ones_like(gate), tier)[0]
    assert (out[:2] == 0).all()
    assert out[2] == np.float32(1e30)
    assert abs(out[3]) < 1e-6
    assert out[4] == 88
    assert abs(out[5]) < 1e-35
    assert out[6] == np.float32(3e38)
    assert out[7] == np.inf
    assert np.isnan(out[8])


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_dense_sweep(tier: str) -> None:
    gate = np.linspace(-90, 90, 400_001, dtype=np.float32)[None]
    up = np.ones_like(gate)
    error = np.abs(testing.silu_mul(gate, up, tier) - reference(gate, up))
    assert (error <= 6 * ROUNDING * np.abs(reference(gate, up)) + 1e-35 * np.abs(gate)).all()
