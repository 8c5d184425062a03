"""Scales coarser than the packed layout's groups: one for a whole row ("channel") or a whole matrix ("tensor").

The one scale is stored for every group, so that size and kernels are the same as with groups. For comparisons of
granularity only.
"""

from typing import Final, Literal, get_args

import numpy as np

from quant.codes.int4 import asym_int4_blocks, sym_int4_blocks
from quant.codes.int8 import int8_blocks
from quant.codes.lut4 import lut4_blocks
from quant.codes.matrix import F16, GROUP_SIZES, QuantizedMatrix, check_group, grouped
from quant.errors import TensorError
from quant.methods.problem import MatrixProblem

Extent = Literal["group", "channel", "tensor"]
EXTENTS: Final[tuple[Extent, ...]] = get_args(Extent)


def storage_group(name: str, cols: int) -> int:
    """The largest group that divides a row. Raises TensorError if there is none."""
    fitting = [size for size in GROUP_SIZES if cols % size == 0]
    if not fitting:
        check_group(name, cols, GROUP_SIZES[0])
    return fitting[-1]


def round_coarsely(problem: MatrixProblem, extent: Extent) -> QuantizedMatrix:
    """Rounds to nearest as `int4`, `int8` and `lut4` define it, with a row or the whole matrix as one group.

    Raises TensorError as they do.
    """
    name, rounding, values = problem.name, problem.rounding, problem.weights
    blocks = grouped(name, values, rounding.group)
    rows, groups = blocks.shape[:2]
    if not values.size:
        raise TensorError(name, "is empty")
    whole = blocks.reshape((rows, 1, -1) if extent == "channel" else (1, 1, -1))
    if rounding.type == "sym_int4":
        matrix = sym_int4_blocks(name, whole)
    elif rounding.type == "asym_int4":
        matrix = asym_int4_blocks(name, whole)
    elif rounding.type == "lut4":
        matrix = lut4_blocks(name, whole, rounding.needed_table())
    else:
        matrix = int8_blocks(name, whole)

    def repeated(scales: F16) -> F16:
        return np.ascontiguousarray(np.broadcast_to(scales.reshape(-1, 1), (rows, groups)))

    minima = None if matrix.minima is None else repeated(matrix.minima)
    codes = matrix.codes.reshape(rows, -1)
    return QuantizedMatrix(rounding.type, rounding.group, codes, repeated(matrix.scales), minima, matrix.table)
