"""Round-to-nearest, and a search for each group's scale: the methods that look at one group at a time."""

import numpy as np

from quant.codes.int4 import quantize_asym_int4, quantize_sym_int4
from quant.codes.int8 import quantize_int8
from quant.codes.lut4 import quantize_lut4
from quant.codes.matrix import F32, QuantizedMatrix
from quant.methods.grids import assembled, grid_of
from quant.methods.problem import MatrixProblem

_ROW_CHUNK = 256


def round_to_nearest(problem: MatrixProblem) -> QuantizedMatrix:
    """Rounds as `codes.int4`, `int8` and `lut4` define it; needs no calibration."""
    name, rounding = problem.name, problem.rounding
    if rounding.type == "sym_int4":
        return quantize_sym_int4(name, problem.weights, rounding.group)
    if rounding.type == "asym_int4":
        return quantize_asym_int4(name, problem.weights, rounding.group)
    if rounding.type == "lut4":
        return quantize_lut4(name, problem.weights, rounding.group, rounding.needed_table())
    return quantize_int8(name, problem.weights, rounding.group)


def search_scales(problem: MatrixProblem) -> QuantizedMatrix:
    """Chooses for each group the candidate scale with the least error, weighted by the inputs' power.

    The power is the diagonal of the moments, which llama.cpp calls an importance matrix. int8 is rounded to nearest.
    Raises TensorError for weights or inputs that are not finite, or without calibration.
    """
    if problem.rounding.type == "int8":
        return round_to_nearest(problem)
    blocks, group = problem.blocks(), problem.rounding.group
    power = np.diagonal(problem.needed_moments()).reshape(-1, group)
    rows, groups, _ = blocks.shape
    codes = np.empty((rows, groups, group), np.uint8)
    scales, minima = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    for number in range(groups):
        for begin in range(0, rows, _ROW_CHUNK):
            part = slice(begin, min(begin + _ROW_CHUNK, rows))
            found = _best(np.ascontiguousarray(blocks[part, number].T), power[number], problem)
            codes[part, number], scales[part, number], minima[part, number] = found
    return assembled(problem.rounding, codes.reshape(rows, -1), scales, minima)


def _best(weights: F32, power: F32, problem: MatrixProblem) -> tuple[F32, F32, F32]:
    """Quantizes one group's weights [inputs, rows] -> codes [rows, inputs], scales and minima [rows]."""
    grid = grid_of(problem.rounding)
    candidates = grid.candidates(weights)
    tried = grid.codes(weights[:, None, :], candidates)
    errors = weights[:, None, :] - (candidates.scales * grid.levels(tried) + candidates.minima)
    errors *= errors
    best = np.tensordot(power, errors, 1).argmin(0)
    chosen = candidates.taken(best)
    return grid.codes(weights, chosen).T, chosen.scales, chosen.minima
