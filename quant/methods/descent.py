"""Improves the codes and scales that a method chose, for the same error: tr((W - Q) H (W - Q)^T).

`refitted` solves for all scales of a row at once, with the codes fixed; `descended` goes over the codes and sets each
to its best value while all others are fixed. Neither increases the error with the damped H, except by rounding the
scales to fp16. Source of the descent: Behdin et al. 2023, "QuantEase". Knows no files.
"""

import numpy as np

from kernels import _native
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, QuantizedMatrix
from quant.methods.grids import Grid, assembled, grid_of, rounded_to_fp16
from quant.methods.problem import Rounding


class Descent:
    """Coordinate descent on some rows of a matrix."""

    def __init__(self, target: F32, moments: F32) -> None:
        """target: the wanted weights [rows, cols]. moments: H, damped, [cols, cols]."""
        self._moments = moments
        self._goal = target @ moments

    def refitted(self, matrix: QuantizedMatrix) -> QuantizedMatrix:
        """Fits the scales by least squares, row by row; codes and minima stay."""
        group, (rows, cols) = matrix.group, matrix.codes.shape
        groups = cols // group
        levels = self._grid(matrix).levels(matrix.codes.astype(np.float32))
        goal, minima = self._goal, _minima(matrix)
        if matrix.minima is not None:
            goal = goal - minima @ self._moments.reshape(groups, group, cols).sum(1)
        right = (goal * levels).reshape(rows, groups, group).sum(-1)
        left = np.empty((rows, groups, groups), np.float32)
        for number, begin in enumerate(range(0, cols, group)):
            # Symmetric, so that the groups before this one have it already.
            product = levels[:, begin : begin + group] @ self._moments[begin : begin + group, begin:]
            product *= levels[:, begin:]
            sums = product.reshape(rows, groups - number, group).sum(-1)
            left[:, number, number:] = left[:, number:, number] = sums
        diagonal = np.einsum("rgg->rg", left)
        diagonal += np.float32(1e-6) * diagonal.mean(1, keepdims=True) + np.float32(1e-30)
        solved = np.linalg.solve(left, right[..., None])[..., 0]
        scales = np.where(np.isfinite(solved), rounded_to_fp16(solved), matrix.scales.astype(np.float32))
        return assembled(_rounding(matrix), matrix.codes, scales, minima)

    def descended(self, matrix: QuantizedMatrix) -> QuantizedMatrix:
        """One pass over all codes, input by input; scales stay."""
        group, codes = matrix.group, matrix.codes.copy()
        levels = self._grid(matrix).all_levels
        pull = self._goal - dequantize(matrix) @ self._moments  # minus half the gradient
        scales, minima = matrix.scales.astype(np.float32), _minima(matrix)
        for number, begin in enumerate(range(0, codes.shape[1], group)):
            block, later = slice(begin, begin + group), slice(begin + group, None)
            found, changes = _native.descend_group(
                np.ascontiguousarray(codes[:, block].T),
                np.ascontiguousarray(pull[:, block].T),
                np.ascontiguousarray(self._moments[block, block]),
                np.ascontiguousarray(scales[:, number]),
                np.ascontiguousarray(minima[:, number]),
                levels,
            )
            codes[:, block] = found.T
            pull[:, later] -= changes.T @ self._moments[block, later]
        return assembled(_rounding(matrix), codes, scales, minima)

    @staticmethod
    def _grid(matrix: QuantizedMatrix) -> Grid:
        return grid_of(_rounding(matrix))


def _rounding(matrix: QuantizedMatrix) -> Rounding:
    return Rounding(matrix.type, matrix.group, matrix.table)


def _minima(matrix: QuantizedMatrix) -> F32:
    """fp32 [rows, groups]; zeros where there are none."""
    return np.zeros(matrix.scales.shape, np.float32) if matrix.minima is None else matrix.minima.astype(np.float32)
