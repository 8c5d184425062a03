"""Improves the codes and scales that a method chose, for the same error: tr((W - Q) H (W - Q)^T).

`refitted` solves for all scales of a row at once, with the codes fixed; `descended` goes over the codes and sets each
to its best value while all others are fixed. Neither increases the error with the damped H, except by rounding the
scales to fp16. Source of the descent: Behdin et al. 2023, "QuantEase". Knows no files.
"""

import numpy as np

from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, QuantizedMatrix
from quant.methods.grids import Scales, assembled, grid_of, rounded_to_fp16
from quant.methods.problem import Rounding

_ROW_CHUNK = 1024


def refitted(matrix: QuantizedMatrix, target: F32, moments: F32) -> QuantizedMatrix:
    """Fits the scales by least squares, row by row; codes and minima stay. target: [rows, cols]; moments: damped."""
    rounding = Rounding(matrix.type, matrix.group, matrix.table)
    rows, cols = target.shape
    groups, group = cols // matrix.group, matrix.group
    scales = matrix.scales.astype(np.float32)
    for begin in range(0, rows, _ROW_CHUNK):
        part = slice(begin, min(begin + _ROW_CHUNK, rows))
        levels = grid_of(rounding).levels(matrix.codes[part].astype(np.float32))
        wanted = target[part]
        if matrix.minima is not None:
            wanted = wanted - np.repeat(matrix.minima[part].astype(np.float32), group, 1)
        right = ((wanted @ moments) * levels).reshape(-1, groups, group).sum(-1)
        left = np.empty((len(levels), groups, groups), np.float32)
        for number in range(groups):
            block = slice(number * group, (number + 1) * group)
            left[:, number] = ((levels[:, block] @ moments[block]) * levels).reshape(-1, groups, group).sum(-1)
        diagonal = np.einsum("rgg->rg", left)
        diagonal += np.float32(1e-6) * diagonal.mean(1, keepdims=True) + np.float32(1e-30)
        solved = np.linalg.solve(left, right[..., None])[..., 0]
        scales[part] = np.where(np.isfinite(solved), rounded_to_fp16(solved), scales[part])
    minima = np.zeros_like(scales) if matrix.minima is None else matrix.minima.astype(np.float32)
    return assembled(rounding, matrix.codes, scales, minima)


def descended(matrix: QuantizedMatrix, target: F32, moments: F32) -> QuantizedMatrix:
    """One pass over all codes, input by input; scales stay. target: fp32 [rows, cols]; moments: damped."""
    rounding = Rounding(matrix.type, matrix.group, matrix.table)
    grid, group = grid_of(rounding), matrix.group
    codes = matrix.codes.copy()
    pull = (target - dequantize(matrix)) @ moments  # minus half the gradient
    scales = matrix.scales.astype(np.float32)
    minima = np.zeros_like(scales) if matrix.minima is None else matrix.minima.astype(np.float32)
    for begin in range(0, target.shape[1], group):
        block = slice(begin, begin + group)
        own = moments[block, block]
        mine = Scales(np.ascontiguousarray(scales[:, begin // group]), np.ascontiguousarray(minima[:, begin // group]))
        values = (mine.scales * grid.levels(codes[:, block].T.astype(np.float32))) + mine.minima  # [group, rows]
        local = np.ascontiguousarray(pull[:, block].T)
        changes = np.zeros_like(values)
        for k in range(group):
            best = grid.codes(values[k] + local[k] / own[k, k], mine)
            changes[k] = mine.scales * grid.levels(best) + mine.minima - values[k]
            codes[:, begin + k] = best
            local[k + 1 :] -= own[k, k + 1 :, None] * changes[k]
        pull -= changes.T @ moments[block]
    return assembled(rounding, codes, scales, minima)
