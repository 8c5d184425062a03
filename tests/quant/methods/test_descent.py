import numpy as np
import pytest

from quant.codes.matrix import IntegerType
from quant.methods.descent import Descent
from quant.methods.rounding import round_to_nearest
from tests.quant.methods.problems import TYPES, error, problem


@pytest.mark.parametrize("kind", TYPES)
def test_scales_are_the_least_squares_ones(kind: IntegerType) -> None:
    """Against NumPy's solver on the whole system of one row, in float64."""
    asked = problem(kind)
    moments = asked.needed_moments()
    matrix = round_to_nearest(asked)
    found = Descent(asked.weights, moments).refitted(matrix)
    assert np.array_equal(found.codes, matrix.codes)
    root = np.linalg.cholesky(moments.astype(np.float64)).T
    row = 11
    codes = matrix.codes[row].astype(np.float64)
    levels = {"sym_int4": codes - 8, "asym_int4": codes}.get(kind)
    if levels is None:
        levels = np.array(matrix.table, np.float64)[matrix.codes[row]]
    minima = 0.0 if matrix.minima is None else np.repeat(matrix.minima[row].astype(np.float64), 64)
    columns = np.zeros((192, 3))
    for number in range(3):
        columns[number * 64 : number * 64 + 64, number] = levels[number * 64 : number * 64 + 64]
    best, *_ = np.linalg.lstsq(root @ columns, root @ (asked.weights[row] - minima), rcond=None)
    assert np.abs(found.scales[row] - best).max() < 2e-3 * np.abs(best).max()


@pytest.mark.parametrize("kind", TYPES)
def test_neither_step_errs_more(kind: IntegerType) -> None:
    asked = problem(kind)
    moments = asked.needed_moments()
    matrix = round_to_nearest(asked)
    before = error(matrix, asked, moments)
    for _ in range(3):
        fitted = Descent(asked.weights, moments).refitted(matrix)
        assert error(fitted, asked, moments) < before * 1.001  # fp16 rounds the scales
        before = error(fitted, asked, moments)
        matrix = Descent(asked.weights, moments).descended(fitted)
        assert error(matrix, asked, moments) <= before * 1.00001
        before = error(matrix, asked, moments)


def test_a_descended_matrix_has_no_better_single_code() -> None:
    asked = problem(rows=8, cols=64)
    moments = asked.needed_moments()
    matrix = round_to_nearest(asked)
    for _ in range(60):
        matrix = Descent(asked.weights, moments).descended(matrix)
    best = error(matrix, asked, moments)
    for row in range(8):
        for col in range(0, 64, 5):
            for code in range(16):
                codes = matrix.codes.copy()
                codes[row, col] = code
                changed = type(matrix)(matrix.type, matrix.group, codes, matrix.scales)
                assert error(changed, asked, moments) > best * (1 - 1e-5)
