"""GPTQ with a scale search: each weight's rounding error is compensated by the weights that are rounded after it.

Where H is the damped moments and H = (I + N) D (I + N)^T with N strictly upper triangular, a row's error is
sum_k D_k (e_k + sum_{i<k} e_i N_ik)^2, e = w - q. So input k is rounded from w_k + sum_{i<k} e_i N_ik, and what it adds
is D_k times its own rounding error squared. That is GPTQ (Frantar et al. 2022, "GPTQ: Accurate Post-Training
Quantization for Generative Pre-trained Transformers") in the form of Chee et al. 2023, "QuIP", theorem 6, which needs
neither the inverse of H nor a copy of W that is updated.

A group's scale is chosen when the group is reached: the whole group is rounded with each candidate, and the one with
the least resulting error is taken. Groups are rounded in descending order of their inputs' power, and so are the inputs
of a group; in the result they keep their places.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32, U8, QuantizedMatrix
from quant.methods.grids import Grid, Scales, assembled, grid_of
from quant.methods.problem import MatrixProblem

_ROW_CHUNK = 288  # rows whose candidates are tried at once, so that the errors of one group fit the caches
_STEP = 8  # inputs of a group between two matrix products


@dataclass(frozen=True, slots=True)
class Feedback:
    """H = (I + upper) diag(power) (I + upper)^T for the reordered inputs; order[i] is the i-th input to be rounded."""

    order: NDArray[np.intp]
    upper: F32
    power: F32


def feedback_of(moments: F32, group: int) -> Feedback:
    """moments: damped, [cols, cols]."""
    power = np.diagonal(moments).reshape(-1, group)
    groups = np.argsort(-power.sum(1), kind="stable")
    inside = np.argsort(-power, axis=1, kind="stable")
    order = (groups[:, None] * group + inside[groups]).reshape(-1)
    backwards = order[::-1]
    factor = np.linalg.cholesky(moments[np.ix_(backwards, backwards)])[::-1, ::-1]
    diagonal = np.diagonal(factor).copy()
    upper = factor / diagonal
    np.fill_diagonal(upper, 0)
    return Feedback(order, np.ascontiguousarray(upper, np.float32), (diagonal * diagonal).astype(np.float32))


def gptq(problem: MatrixProblem) -> QuantizedMatrix:
    """Quantizes to a 4-bit type. Raises TensorError for weights or inputs that are not finite, or no calibration."""
    problem.blocks()
    return gptq_with(problem, feedback_of(problem.needed_moments(), problem.rounding.group))


def gptq_with(problem: MatrixProblem, feedback: Feedback) -> QuantizedMatrix:
    """The same, with a factorization that matrices of the same inputs share."""
    group, grid = problem.rounding.group, grid_of(problem.rounding)
    rows, cols = problem.weights.shape
    codes = np.empty((rows, cols), np.uint8)
    scales = np.empty((rows, cols // group), np.float32)
    minima = np.empty_like(scales)

    def quantize(begin: int) -> None:
        part = slice(begin, min(begin + _ROW_CHUNK, rows))
        _quantize_rows(problem.weights[part], feedback, group, grid, (codes[part], scales[part], minima[part]))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(quantize, range(0, rows, _ROW_CHUNK)))
    return assembled(problem.rounding, codes, scales, minima)


def _quantize_rows(weights: F32, feedback: Feedback, group: int, grid: Grid, out: tuple[U8, F32, F32]) -> None:
    codes, scales, minima = out
    cols = weights.shape[1]
    ordered = np.ascontiguousarray(weights[:, feedback.order].T)  # [cols, rows]
    errors = np.empty_like(ordered)
    for begin in range(0, cols, group):
        block = slice(begin, begin + group)
        wanted = ordered[block] + feedback.upper[:begin, block].T @ errors[:begin]
        upper, power = feedback.upper[block, block], feedback.power[block]
        candidates = grid.candidates(ordered[block])
        tried, _ = _round_group(ordered[block][:, None, :], wanted[:, None, :], candidates, upper, grid)
        # The error that later inputs can't compensate: each input's own rounding error.
        tried *= tried
        best = np.tensordot(power, tried, 1).argmin(0)
        chosen = candidates.taken(best)
        _, group_codes = _round_group(ordered[block], wanted, chosen, upper, grid)
        values = chosen.scales * grid.levels(group_codes) + chosen.minima
        errors[block] = ordered[block] - values
        inputs = feedback.order[block]
        codes[:, inputs] = group_codes.T
        scales[:, inputs[0] // group], minima[:, inputs[0] // group] = chosen.scales, chosen.minima


def _round_group(weights: F32, wanted: F32, scales: Scales, upper: F32, grid: Grid) -> tuple[F32, F32]:
    """Rounds a group's inputs one after the other, [inputs, (1,) rows], for scales [(candidates,) rows].

    wanted: the weights plus the compensation for the errors of earlier groups. Returns each input's rounding error, and
    the codes, both [inputs, (candidates,) rows].
    """
    inputs = len(wanted)
    shape = (inputs, *np.broadcast_shapes(wanted.shape[1:], scales.scales.shape))
    moved = np.broadcast_to(wanted, shape).copy()
    codes, errors = np.empty(shape, np.float32), np.empty(shape, np.float32)
    flat = errors.reshape(inputs, -1)
    for begin in range(0, inputs, _STEP):
        step = slice(begin, begin + _STEP)
        if begin:
            moved[step] += (upper[:begin, step].T @ flat[:begin]).reshape(-1, *shape[1:])
        for k in range(begin, begin + _STEP):
            for i in range(begin, k):
                moved[k] += upper[i, k] * errors[i]
            codes[k] = grid.codes(moved[k], scales)
            values = scales.scales * grid.levels(codes[k]) + scales.minima
            np.subtract(weights[k], values, out=errors[k])
            moved[k] -= values
    return moved, codes
