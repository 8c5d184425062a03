"""Rotary embedding against the formula in double, also far out, and tiers bit for bit."""

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing

ROUNDING = 2.0**-24


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(2, 2), (64, 64), (80, 80), (80, 32), (128, 128), (96, 72)])
@pytest.mark.parametrize("position", [0, 1, 4095, 131_071, 10_000_000])
def test_every_tier(head_dim: int, rotary_dim: int, position: int) -> None:
    rng = np.random.default_rng(rotary_dim + position)
    heads = rng.standard_normal((5, head_dim), np.float32)
    half = rotary_dim // 2
    angles = position * 10_000.0 ** (-2 * np.arange(half) / rotary_dim)
    cosine, sine = np.cos(angles), np.sin(angles)
    cos_sin = np.concatenate([cosine, sine]).astype(np.float32)
    scalar = testing.rope(heads, cos_sin, "scalar")

    a, b = heads[:, :half].astype(np.float64), heads[:, half:rotary_dim].astype(np.float64)
    expected = heads.astype(np.float64)
    expected[:, :half] = a * cosine - b * sine
    expected[:, half:rotary_dim] = b * cosine + a * sine
    # Cosine and sine are rounded once, one product and the fma once each.
    bound = np.zeros((5, head_dim))
    bound[:, :rotary_dim] = 3 * ROUNDING * np.tile(np.abs(a) + np.abs(b), 2)
    assert (np.abs(scalar - expected) <= bound).all()
    for tier in _native.available_tiers()[1:]:
        assert np.array_equal(testing.rope(heads, cos_sin, tier), scalar)


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_products_of_rotated_heads_depend_on_the_distance_only(tier: str) -> None:
    rng = np.random.default_rng(3)
    query, key = rng.standard_normal((2, 1, 64), np.float32)
    frequencies = 100_000.0 ** (-2 * np.arange(32) / 64)

    def at(head: np.ndarray, position: int) -> np.ndarray:
        angles = position * frequencies
        return testing.rope(head, np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32), tier)

    products = [float((at(query, 100 + p).astype(np.float64) * at(key, p)).sum()) for p in (0, 17, 5000, 1_000_000)]
    bound = 8 * ROUNDING * float((np.abs(query) * np.abs(key)).sum() * 4)
    assert np.ptp(products) <= bound
