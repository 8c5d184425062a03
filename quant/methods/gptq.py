"""GPTQ with a scale search: each weight's rounding error is compensated by the weights that are rounded after it.

Where H is the damped moments and H = (I + N) D (I + N)^T with N strictly upper triangular, a row's error is
sum_k D_k (e_k + sum_{i<k} e_i N_ik)^2, e = w - q. So input k is rounded from w_k + sum_{i<k} e_i N_ik, and what it adds
is D_k times its own rounding error squared. That is GPTQ (Frantar et al. 2022, "GPTQ: Accurate Post-Training
Quantization for Generative Pre-trained Transformers") in the form of Chee et al. 2023, "QuIP", theorem 6, which needs
neither the inverse of H nor a copy of W that is updated.

A group's scale is chosen when the group is reached: the whole group is rounded with each candidate, and the one with
the least error that later inputs can't compensate is taken (kernels/rounding). Groups are rounded in descending order
of their inputs' power, and so are the inputs of a group; in the result they keep their places.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels import _native
from quant.codes.matrix import F32, QuantizedMatrix
from quant.methods.grids import assembled, grid_of
from quant.methods.problem import MatrixProblem, Rounding
from quant.methods.row_parts import by_rows


@dataclass(frozen=True, slots=True)
class Feedback:
    """H = (I + upper) diag(power) (I + upper)^T for the reordered inputs; order[i] is the i-th input to be rounded."""

    order: NDArray[np.intp]
    upper: F32
    power: F32


def feedback_of(moments: F32, group: int) -> Feedback:
    """Factorizes moments [cols, cols], which must be damped."""
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


def gptq_with(problem: MatrixProblem, feedback: Feedback) -> QuantizedMatrix:
    """Quantizes to a 4-bit type. feedback: of the problem's damped moments. Raises TensorError for other weights."""
    problem.blocks()
    return by_rows(len(problem.weights), lambda part: rounded(problem.weights[part], feedback, problem.rounding))


def rounded(weights: F32, feedback: Feedback, rounding: Rounding) -> QuantizedMatrix:
    """Does the same for some rows [rows, cols], in this thread."""
    group, grid = rounding.group, grid_of(rounding)
    rows, cols = weights.shape
    codes = np.empty((rows, cols), np.uint8)
    scales = np.empty((rows, cols // group), np.float32)
    minima = np.empty_like(scales)
    ordered = np.ascontiguousarray(weights[:, feedback.order].T)  # [cols, rows]
    errors = np.empty_like(ordered)
    for begin in range(0, cols, group):
        block = slice(begin, begin + group)
        wanted = ordered[block] + feedback.upper[:begin, block].T @ errors[:begin]
        candidates = grid.candidates(ordered[block])
        found = _native.round_group(
            ordered[block],
            wanted,
            np.ascontiguousarray(feedback.upper[block, block].T),
            feedback.power[block],
            candidates.scales,
            candidates.minima,
            grid.all_levels,
        )
        inputs = feedback.order[block]
        codes[:, inputs], errors[block] = found[0].T, found[1]
        chosen = candidates.taken(found[2][0])
        scales[:, inputs[0] // group], minima[:, inputs[0] // group] = chosen.scales, chosen.minima
    return assembled(rounding, codes, scales, minima)
