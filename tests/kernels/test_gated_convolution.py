"""Gated convolutions: every tier against the scalar one, and that against NumPy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing

F32 = NDArray[np.float32]


def rows(count: int, channels: int, taps: int, known: int) -> tuple[F32, F32, F32, F32, F32, F32]:
    """before, behind, values, history, taps, bias."""
    generator = np.random.default_rng(channels)
    shapes = [(count, channels)] * 3 + [(known, channels), (taps, channels), (channels,)]
    before, behind, values, history, weights, bias = (
        generator.standard_normal(shape).astype(np.float32) for shape in shapes
    )
    return before, behind, values, history, weights, bias


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("count", "channels", "taps", "known"), [(9, 37, 3, 2), (1, 16, 4, 3), (5, 8, 8, 0), (3, 33, 1, 0)]
)
def test_against_numpy(count: int, channels: int, taps: int, known: int, biased: bool) -> None:
    before, behind, values, history, weights, bias = rows(count, channels, taps, known)
    exact = before.astype(np.float64) * values
    seen = np.concatenate([np.zeros((taps - 1 - known, channels)), history, exact])
    summed = np.sum([seen[tap : tap + count] * weights[tap] for tap in range(taps)], axis=0)
    wanted = behind * (summed + (bias if biased else 0))
    found = testing.convolve_gated(before, behind, values, history, weights, bias if biased else None, "scalar")
    assert np.array_equal(values, exact.astype(np.float32))
    sizes = np.abs(behind) * (
        np.sum([np.abs(seen[t : t + count] * weights[t]) for t in range(taps)], axis=0) + np.abs(bias)
    )
    assert (np.abs(found - wanted) <= (taps + 3) * np.finfo(np.float32).eps * sizes).all()


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize("channels", [1, 16, 37, 256])
def test_tiers_agree(tier: str, channels: int) -> None:
    before, behind, values, history, weights, bias = rows(7, channels, 4, 2)
    kept = values.copy()
    wanted = testing.convolve_gated(before, behind, values, history, weights, bias, "scalar")
    found = testing.convolve_gated(before, behind, kept, history, weights, bias, tier)
    assert np.array_equal(found, wanted)
    assert np.array_equal(kept, values)
