"""The values that each 4-bit type can represent in a group, and the code of the nearest one.

A grid has the values `scale * level(code) + minimum`. Arrays of weights have the group's inputs first, [inputs, ...],
so that one input's values for many rows and candidates are contiguous. Does not know which scale is best.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F16, F32, TABLE_LIMIT, U8, QuantizedMatrix
from quant.methods.problem import Rounding

_FACTORS: Final = np.linspace(0.58, 1.02, 9, dtype=np.float32)
_ASYM_FACTORS: Final = np.linspace(0.72, 1.04, 5, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Scales:
    """fp32 values that are exact in fp16, of any one shape; minima are zero except for asym_int4."""

    scales: F32
    minima: F32

    def taken(self, best: NDArray[np.integer]) -> "Scales":
        """Selects candidate best[row] of each row: [candidates, rows] -> [rows]."""
        rows = np.arange(len(best))
        return Scales(self.scales[best, rows], self.minima[best, rows])


class Grid(Protocol):
    """The arithmetic of one 4-bit type."""

    @property
    def all_levels(self) -> F32:
        """The levels of codes 0 to 15, which rise."""

    def candidates(self, weights: F32) -> Scales:
        """Scales [candidates, rows] worth trying for a group's weights [inputs, rows]."""

    def codes(self, weights: F32, scales: Scales) -> F32:
        """The code of the nearest value, as fp32; scales broadcast against the weights."""

    def levels(self, codes: F32) -> F32:
        """The levels of codes: the factors of the scale."""


def rounded_to_fp16(values: F32) -> F32:
    """Rounded to fp16, as fp32; values outside fp16's range become its largest value."""
    return np.clip(values, np.float32(-65504), np.float32(65504)).astype(np.float16).astype(np.float32)


def reciprocal(scales: F32) -> F32:
    """1 / scales; 0 where the scale is 0."""
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


class SymGrid:
    """sym_int4: level = code - 8. The scale may be negative, so either side can have the eighth step."""

    all_levels = np.arange(-8, 8, dtype=np.float32)

    def candidates(self, weights: F32) -> Scales:
        """Returns both signs, with magnitudes from strong clipping of the largest weight to none."""
        largest = np.abs(weights).max(0) / np.float32(8)
        factors = np.concatenate([_FACTORS, -_FACTORS])
        scales = rounded_to_fp16(factors[:, None] * largest)
        return Scales(scales, np.zeros_like(scales))

    def codes(self, weights: F32, scales: Scales) -> F32:
        codes = weights * reciprocal(scales.scales)
        np.rint(codes, out=codes)
        np.clip(codes, np.float32(-8), np.float32(7), out=codes)
        codes += np.float32(8)
        return codes

    def levels(self, codes: F32) -> F32:
        return codes - np.float32(8)


class AsymGrid:
    """asym_int4: level = code, above a minimum."""

    all_levels = np.arange(16, dtype=np.float32)

    def candidates(self, weights: F32) -> Scales:
        """Returns ranges with each end moved inwards, in all combinations."""
        low, high = weights.min(0), weights.max(0)
        middle = (low + high) / np.float32(2)
        lows = middle + (low - middle) * _ASYM_FACTORS[:, None]
        highs = middle + (high - middle) * _ASYM_FACTORS[:, None]
        steps = (highs[None, :] - lows[:, None]) / np.float32(15)
        scales = rounded_to_fp16(steps.reshape(-1, weights.shape[1]))
        minima = rounded_to_fp16(np.repeat(lows, len(_ASYM_FACTORS), 0))
        return Scales(scales, minima)

    def codes(self, weights: F32, scales: Scales) -> F32:
        codes = (weights - scales.minima) * reciprocal(scales.scales)
        np.rint(codes, out=codes)
        return np.clip(codes, np.float32(0), np.float32(15), out=codes)

    def levels(self, codes: F32) -> F32:
        return codes


class TableGrid:
    """lut4: level = table[code]."""

    def __init__(self, table: tuple[int, ...]) -> None:
        self.all_levels = np.array(table, np.float32)
        middles = (self.all_levels[:-1] + self.all_levels[1:]) / np.float32(2)
        halves = np.arange(-2 * TABLE_LIMIT, 2 * TABLE_LIMIT + 1, dtype=np.float32) / np.float32(2)
        # Midpoints of integer entries are multiples of 1/2, so each half-open interval of that width has one code.
        self._code_of_half = np.searchsorted(middles, halves, side="right").astype(np.float32)

    def candidates(self, weights: F32) -> Scales:
        """Returns both signs, with magnitudes from strong clipping of the largest weight to none."""
        largest = np.abs(weights).max(0) / np.float32(TABLE_LIMIT)
        factors = np.concatenate([_FACTORS, -_FACTORS]) * np.float32(1.05)
        scales = rounded_to_fp16(factors[:, None] * largest)
        return Scales(scales, np.zeros_like(scales))

    def codes(self, weights: F32, scales: Scales) -> F32:
        """Returns the entry nearest to weight / scale."""
        halves = weights * (np.float32(2) * reciprocal(scales.scales))
        np.floor(halves, out=halves)
        np.clip(halves, np.float32(-2 * TABLE_LIMIT), np.float32(2 * TABLE_LIMIT), out=halves)
        return self._code_of_half[halves.astype(np.int32) + 2 * TABLE_LIMIT]

    def levels(self, codes: F32) -> F32:
        return self.all_levels[codes.astype(np.intp)]


def grid_of(rounding: Rounding) -> Grid:
    """Returns the grid of a 4-bit type."""
    if rounding.type == "lut4":
        return TableGrid(rounding.needed_table())
    assert rounding.type in ("sym_int4", "asym_int4"), rounding.type
    return SymGrid() if rounding.type == "sym_int4" else AsymGrid()


def assembled(rounding: Rounding, codes: U8, scales: F32, minima: F32) -> QuantizedMatrix:
    """Makes a matrix of that type from codes [rows, cols], scales and minima [rows, groups]."""
    stored: F16 = scales.astype(np.float16)
    low = minima.astype(np.float16) if rounding.type == "asym_int4" else None
    return QuantizedMatrix(rounding.type, rounding.group, codes, stored, low, rounding.table)
