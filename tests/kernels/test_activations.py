"""Activations against float64, and tiers bit for bit."""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing

ROUNDING = 2.0**-24
NAMES = ("silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "swiglu_oai")
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 1536, 4099)

SILU_SHA256 = "3462c85a81195fe660adb6980c862b8646daa99efed537ec2029eaebe38ce77f"
"""Of what the first engine computed, in every tier."""

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def sigmoid(x: F64) -> F64:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def twice_tanh_argument(x: F64) -> F64:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def gelu_erf(x: F64) -> F64:
    return np.asarray(x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)) / 2)


FUNCTIONS: dict[str, Callable[[F64], F64]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu_tanh": lambda x: x * sigmoid(twice_tanh_argument(x)),
    "gelu_erf": gelu_erf,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "swiglu_oai": lambda x: np.minimum(x, 7) * sigmoid(1.702 * np.minimum(x, 7)),
}


def reference(name: str, gate: F32, up: F32 | None = None) -> F64:
    result = FUNCTIONS[name](gate.astype(np.float64))
    if up is None:
        return result
    factor = up.astype(np.float64)
    return np.asarray(result * (np.clip(factor, -7, 7) + 1 if name == "swiglu_oai" else factor))


def bound(name: str, gate: F32, up: F32 | None = None) -> F64:
    """What fp32 may be off by."""
    wide = gate.astype(np.float64)
    # The exponential is off by 3 units (polynomial 1.4, its argument below 1), the sum, the quotient and the product by
    # one each.
    units: F64 = np.full(gate.shape, 6.0)
    # An argument v of sigmoid that was rounded before moves it by |v| (1 - sigmoid(v)) as often.
    if name == "gelu_tanh":  # the square, both constants, the sum, the product
        argument = twice_tanh_argument(wide)
        units += 5 * np.abs(argument) * sigmoid(-argument)
    elif name == "swiglu_oai":  # the constant, the product; and 1 is added to up
        argument = 1.702 * np.minimum(wide, 7)
        units += 2 * np.abs(argument) * sigmoid(-argument) + 1
    elif name == "gelu_erf":
        # The exponential 3, the fit 0.2, 4 and 5 fused steps of the polynomials, all terms of one sign, their quotient,
        # and the products with the exponential, the gate and up. On the other side 1 - tail, of a tail below 1/2.
        units[:] = 17
    elif name == "relu2":
        units[:] = 2
    factor: F64 | float = 1.0 if up is None else np.abs(up.astype(np.float64)) + (name == "swiglu_oai")
    # Where the exponential is cut off, an activation is below 1e-35 of the gate; subnormal numbers are 2^-149 apart.
    least = (1e-35 * np.abs(wide) + 2.0**-149) * factor + 2.0**-149
    return np.asarray(units * ROUNDING * np.abs(reference(name, gate, up)) + least)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", SIZES)
def test_every_tier(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    gate = rng.standard_normal((5, n), np.float32) * np.array([[0.01], [1], [5], [20], [60]], np.float32)
    up = rng.standard_normal((5, n), np.float32) * np.array([[1], [3], [30], [1], [0.01]], np.float32)
    for factor in (up, None):
        scalar = testing.activate(name, gate, factor, "scalar")
        assert (np.abs(scalar - reference(name, gate, factor)) <= bound(name, gate, factor)).all()
        for tier in _native.available_tiers()[1:]:
            assert np.array_equal(testing.activate(name, gate, factor, tier).view(np.uint32), scalar.view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
def test_dense_sweep(name: str) -> None:
    gate = np.linspace(-90, 90, 400_001, dtype=np.float32)[None]
    small = np.geomspace(1e-30, 1, 50_001, dtype=np.float32)[None]
    gate = np.concatenate([gate, small, -small], axis=1)
    scalar = testing.activate(name, gate, None, "scalar")
    assert (np.abs(scalar - reference(name, gate)) <= bound(name, gate)).all()
    for tier in _native.available_tiers()[1:]:
        assert np.array_equal(testing.activate(name, gate, None, tier).view(np.uint32), scalar.view(np.uint32))


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_silu_keeps_its_bits(tier: str) -> None:
    """Models' answers depend on them, and so do the bf16 kernels that compute SiLU themselves."""
    steps = np.arange(-51_200, 51_203, dtype=np.float32)[None]
    out = testing.activate("silu", steps / np.float32(512), steps % 7 - 3, tier)
    assert hashlib.sha256(out.tobytes()).hexdigest() == SILU_SHA256


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tier", _native.available_tiers())
def test_extremes(name: str, tier: str) -> None:
    gate = np.array([[0, -0.0, 1e18, -1e30, 88, -88, 3e38, -3e38, np.inf, np.nan]], np.float32)
    out = testing.activate(name, gate, None, tier)[0]
    large = gate[0, [2, 4, 6, 8]]
    assert (out[:2] == 0).all()
    if name == "swiglu_oai":
        assert (out[[2, 4, 6, 8]] == np.float32(7 / (1 + math.exp(-7 * 1.702)))).all()
    else:
        with np.errstate(over="ignore"):
            assert np.array_equal(out[[2, 4, 6, 8]], large**2 if name == "relu2" else large)
    assert abs(out[3]) < 1e-6
    assert abs(out[5]) < 1e-35
    assert abs(out[7]) < 1e2
    assert np.isnan(out[9])


@pytest.mark.parametrize("name", NAMES)
def test_odd_values_are_the_same_in_every_tier(name: str) -> None:
    """Subnormal numbers, infinities, NaN and the numbers around them, times each other."""
    odd = [0.0, 1e-45, 1e-40, 1.1754944e-38, 1e-30, 1.0, 6.9999995, 7.0, 12.9, 13.2, 86.6, 88.8, 1e19, 3.4e38, np.inf]
    values = np.array([*odd, *(-x for x in odd), np.nan], np.float32)
    gate, up = np.repeat(values, values.size)[None], np.tile(values, values.size)[None]
    scalar = testing.activate(name, gate, up, "scalar")
    for tier in _native.available_tiers()[1:]:
        assert np.array_equal(testing.activate(name, gate, up, tier), scalar, equal_nan=True)


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_nan_of_either_input_shows(tier: str) -> None:
    for name in NAMES:
        gate, up = np.ones((1, 19), np.float32), np.ones((1, 19), np.float32)
        gate[0, 3] = up[0, 18] = np.nan
        shown = np.isnan(testing.activate(name, gate, up, tier)[0])
        assert list(np.flatnonzero(shown)) == [3, 18]


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_rows_may_begin_anywhere(tier: str) -> None:
    rng = np.random.default_rng(0)
    memory = rng.standard_normal(2 * 64, np.float32)
    for name in NAMES:
        for begin in range(1, 17):
            gate, up = memory[begin : begin + 37][None], memory[64 + begin // 2 : 64 + begin // 2 + 37][None]
            aligned = testing.activate(name, gate.copy(), up.copy(), tier)
            assert np.array_equal(testing.activate(name, gate, up, tier), aligned)


def test_an_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown activation 'mish'; there are: silu, gelu_tanh"):
        testing.activate("mish", np.zeros((1, 1), np.float32), None, "scalar")
