"""More rows than rows times passes fit 32 bits."""

from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.kernel_cases import LinearCase, make_weights, matrix_of
from kernels import _native
from kernels._native import testing
from tests.kernels.test_linear import run_fp32, run_int8, same_bits

MOST = [1, 2, 3, 4, 6, 8, 32, 64]
"""Rows of a pass in one kernel or another."""
COUNTS = [0, 1, 7, 65_535, 65_536, 92_682, 131_072, 1 << 20, (1 << 24) + 1]
PATTERN = 1_013
"""Different rows; prime, so that they fall on every place of a pass."""
ROWS = 150_000


def test_passes_are_of_nearly_the_same_size_and_cover_all_rows() -> None:
    for rows, most in product(COUNTS, MOST):
        fewest, largest, passes = testing.row_passes(rows, most)
        assert passes == -(-rows // most)
        if rows:
            assert max(1, largest - 1) <= fewest <= largest <= most, (rows, most)


@pytest.mark.parametrize("count", [7, 1 << 20, (1 << 31) - 1, (1 << 20) * 3072])
@pytest.mark.parametrize("shares", [1, 3, 1024])
def test_shares_follow_each_other(count: int, shares: int) -> None:
    ranges = [testing.share(count, index, shares) for index in range(shares)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == count
    assert all(end == begin for (_, end), (begin, _) in pairwise(ranges))
    assert {end - begin for begin, end in ranges} <= {count // shares, -(-count // shares)}


def inputs(cols: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """PATTERN rows, and which of them each of ROWS rows is."""
    x = np.random.default_rng(0).standard_normal((PATTERN, cols), dtype=np.float32)
    return x, np.arange(ROWS) % PATTERN


@pytest.mark.parametrize("tier", testing.linear_tiers())
@pytest.mark.parametrize("weight_type", ["sym_int4", "fp32"])
def test_fp32_kernels_give_each_row_its_own_result(weight_type: str, tier: str) -> None:
    case = LinearCase(weight_type, 1, 32, 32 if weight_type == "sym_int4" else 0)
    weights = make_weights(case, np.random.default_rng(1))
    x, rows = inputs(case.cols)
    assert same_bits(run_fp32(case, weights, x[rows], tier), run_fp32(case, weights, x, tier)[rows])


@pytest.mark.parametrize("tier", testing.linear_tiers())
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("weight_type", ["sym_int4", "int8"])
def test_int8_kernels_give_each_row_its_own_result(weight_type: str, terms: int, tier: str) -> None:
    case = LinearCase(weight_type, 1, 32, 32)
    weights = make_weights(case, np.random.default_rng(1))
    x, rows = inputs(case.cols)
    many = testing.quantize_rows(x[rows], case.group, tier, terms)
    few = testing.quantize_rows(x, case.group, tier, terms)
    assert same_bits(run_int8(case, weights, many, tier), run_int8(case, weights, few, tier)[rows])


@pytest.mark.parametrize("activations", ["int8", "fp32"])
def test_a_layer_takes_any_number_of_rows(activations: str) -> None:
    case = LinearCase("sym_int4", 1, 32, 32)
    matrix = matrix_of(case, make_weights(case, np.random.default_rng(1)))
    runner = _native.LinearRunner(2)
    x, rows = inputs(case.cols)

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        y = np.empty((len(x), case.rows), np.float32)
        runner.run(matrix, x, y, activations=activations)
        return y

    assert same_bits(run(x[rows]), run(x)[rows])
