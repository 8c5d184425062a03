from dataclasses import replace

import numpy as np
import pytest

from quant.codes.int4 import quantize_sym_int4
from quant.codes.int8 import quantize_int8
from quant.codes.matrix import IntegerType
from quant.errors import TensorError
from quant.methods.problem import MatrixProblem, corrected
from quant.methods.registry import METHODS
from quant.methods.rounding import round_to_nearest, search_scales
from tests.quant.methods.problems import TYPES, error, problem, rounding


@pytest.mark.parametrize("kind", TYPES)
def test_the_search_errs_less_where_inputs_are_strong(kind: IntegerType) -> None:
    asked = problem(kind)
    power = np.diag(np.diagonal(asked.needed_moments()))
    assert error(search_scales(asked), asked, power) < error(round_to_nearest(asked), asked, power)


def test_rounding_to_nearest_is_the_definition() -> None:
    asked = problem()
    assert np.array_equal(round_to_nearest(asked).codes, quantize_sym_int4("test", asked.weights, 64).codes)


@pytest.mark.parametrize("method", METHODS)
def test_int8_is_always_rounded_to_nearest(method: str) -> None:
    asked = problem("int8")
    assert np.array_equal(METHODS[method](asked).codes, quantize_int8("test", asked.weights, 64).codes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_finite_is_refused_by_name(method: str, value: float) -> None:
    asked = problem()
    weights = asked.weights.copy()
    weights[5, 70] = value
    with pytest.raises(TensorError, match="'test': holds NaN or infinite"):
        METHODS[method](replace(asked, weights=weights))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "rtn"])
def test_calibrated_methods_want_sound_moments(method: str) -> None:
    asked = problem()
    with pytest.raises(TensorError, match="'test': this method needs calibration"):
        METHODS[method](replace(asked, moments=None))
    assert asked.moments is not None
    with pytest.raises(TensorError, match="'test': its calibration inputs hold NaN"):
        METHODS[method](replace(asked, moments=asked.moments * np.float32(np.nan)))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("method", METHODS)
def test_zero_weights_and_dead_inputs(method: str, kind: IntegerType) -> None:
    asked = MatrixProblem("test", np.zeros((3, 64), np.float32), rounding(kind, 32), np.zeros((64, 64), np.float32))
    matrix = METHODS[method](asked)
    assert error(matrix, asked, np.eye(64, dtype=np.float32)) < 1e-9
    assert np.isfinite(matrix.scales).all()


def test_corrected_weights_give_the_originals_outputs() -> None:
    """Inputs that were distorted by an invertible map, and a residual that lacks something linear, are made up for."""
    generator = np.random.default_rng(1)
    weights = generator.standard_normal((5, 32)).astype(np.float32)
    exact = generator.standard_normal((4000, 32)).astype(np.float32)
    seen = exact @ (np.eye(32) + 0.05 * generator.standard_normal((32, 32))).astype(np.float32)
    lacking = seen @ generator.standard_normal((32, 5)).astype(np.float32) * np.float32(0.1)
    count = np.float32(len(seen))
    missing = (exact @ weights.T + lacking - seen @ weights.T).T @ seen / count
    better = corrected(weights, seen.T @ seen / count, missing)
    wanted = exact @ weights.T + lacking
    before = np.linalg.norm(seen @ weights.T - wanted)
    assert np.linalg.norm(seen @ better.T - wanted) < 0.2 * before  # what damping leaves
    assert np.array_equal(corrected(weights, seen.T @ seen / count, np.zeros_like(weights)), weights)
