"""Moments of inputs against their definitions, and what experts with few rows get."""

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.calibration.sums import PRIOR_ROWS_PER_INPUT, block_sums, expert_moments, summed
from quant.codes.matrix import F32

COLS = 16


def rows(count: int, cols: int = COLS, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal((count, cols)).astype(np.float32)


def test_sums_do_not_depend_on_how_tokens_are_cut() -> None:
    inputs, differences, weights = rows(50), rows(50, 5, 1), rows(5, COLS, 2)
    sums = summed((inputs[begin : begin + 7], differences[begin : begin + 7]) for begin in range(0, 50, 7))
    exact = inputs.astype(np.float64)
    moments, against = exact.T @ exact / 50, differences.T.astype(np.float64) @ exact / 50
    assert np.allclose(sums.moments, moments, atol=1e-6)
    assert np.allclose(sums.against, against, atol=1e-6)
    assert np.allclose(sums.missed(weights), against - weights @ moments, atol=1e-5)
    moved = summed([(inputs, inputs)])
    assert np.allclose(moved.moved(weights), weights @ moments, atol=1e-5)


@pytest.mark.parametrize(("cols", "size"), [(96, 96), (1024, 1024), (1536, 768), (2752, 1024), (5632, 1024)])
def test_blocks_of_inputs(cols: int, size: int) -> None:
    inputs = rows(5, cols)
    found = block_sums(inputs)
    assert found.shape == (-(-cols // size), size, size)
    for number, begin in enumerate(range(0, cols, size)):
        own = inputs[:, begin : begin + size]
        wanted = np.zeros((size, size))
        wanted[: own.shape[1], : own.shape[1]] = own.T.astype(np.float64) @ own
        assert np.allclose(found[number], wanted, atol=1e-4)


def test_experts_have_moments_of_their_own_and_few_rows_count_little() -> None:
    counts = (4000, 0, 2)
    experts: NDArray[np.int32] = np.repeat(np.arange(3, dtype=np.int32), counts)
    places = np.random.default_rng(3).permutation(len(experts))
    inputs = rows(len(experts)) * np.where(experts == 0, 1, 3)[:, None].astype(np.float32)
    inputs, experts = inputs[places], experts[places]
    layer = 7 * np.eye(COLS, dtype=np.float32)
    many, none, few = expert_moments(lambda mine: inputs[mine], experts, 3, layer)
    prior = PRIOR_ROWS_PER_INPUT * COLS
    for found, expert in ((many, 0), (few, 2)):
        own = inputs[experts == expert].astype(np.float64)
        wanted = (own.T @ own + prior * layer) / (len(own) + prior)
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert np.array_equal(none, layer)
    assert abs(np.trace(many) / COLS - 1) < 0.1
    assert np.linalg.eigvalsh(few)[0] > 0
