"""RMS norm against float64, and tiers bit for bit."""

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing

ROUNDING = 2.0**-24
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 576, 577, 896, 4096, 5001)


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
