"""Four-bit codes that index a table of sixteen integers, in NumPy, rounded by the same rules as in `int4`.

A matrix has one table, a group has one scale: w = scale * table[code]. Defines NF4's table and one of our own; others
can be used. Does not know where codes and table are stored.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32, TABLE_LIMIT, QuantizedMatrix, fp16_scales, grouped

NF4: Final = (-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127)
"""The quantiles of a normal distribution, with an exact zero, times 127 and rounded.

Source: NF4 in Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", appendix E.
"""

NORMAL: Final = (-121, -90, -69, -52, -38, -25, -13, -2, 9, 20, 32, 45, 59, 76, 97, 127)
"""Lloyd's levels for groups of 64 normal values whose scale is searched; it may be negative and may clip."""
TABLES: Final[Mapping[str, tuple[int, ...]]] = {"nf4": NF4, "lut4": NORMAL}
"""The tables by the users' names of the types."""


def check_table(table: tuple[int, ...]) -> None:
    """Raises ValueError unless these are 16 ascending integers whose largest magnitude is TABLE_LIMIT."""
    rising = all(low < high for low, high in pairwise(table))
    if len(table) != 16 or not rising or max(abs(entry) for entry in table) != TABLE_LIMIT:
        raise ValueError(f"table {table}: not 16 rising integers, the largest of magnitude {TABLE_LIMIT}")


def quantize_lut4(name: str, values: NDArray[np.generic], group: int, table: tuple[int, ...]) -> QuantizedMatrix:
    """Quantizes [rows, cols]: the smallest d for which the table covers every x / d, and the entry nearest to x / d.

    Of two entries that are equally near the larger is taken. A table from -127 to 127 has d = max|x| / 127.

    Raises:
        TensorError: not floating point, not a matrix, not a multiple of the group, NaN, infinite or out of range.
        ValueError: as check_table.
    """
    return lut4_blocks(name, grouped(name, values, group), table)


def lut4_blocks(name: str, x: F32, table: tuple[int, ...]) -> QuantizedMatrix:
    """Quantizes weights [rows, groups, inputs] with groups of any size; see quantize_lut4."""
    check_table(table)
    low, high = (np.float32(entry) for entry in (min(table[0], 0), max(table[-1], 0)))
    scales = np.zeros(x.shape[:-1], np.float32)
    for end, values in ((low, x.min(axis=-1)), (high, x.max(axis=-1))):
        if end:
            scales = np.maximum(scales, values / end)
    stored = fp16_scales(name, scales)
    per_step = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=stored != 0)
    entries = np.array(table, np.float32)
    between = (entries[:-1] + entries[1:]) / np.float32(2)
    codes = np.searchsorted(between, x * per_step[..., None], side="right").astype(np.uint8)
    return QuantizedMatrix("lut4", x.shape[-1], codes.reshape(len(x), -1), stored, table=table)


def dequantize_lut4(matrix: QuantizedMatrix) -> F32:
    """The fp32 matrix [rows, cols] that the codes stand for."""
    assert matrix.table is not None
    rows, cols = matrix.codes.shape
    entries = np.array(matrix.table, np.float32)[matrix.codes].reshape(rows, cols // matrix.group, matrix.group)
    return (matrix.scales.astype(np.float32)[..., None] * entries).reshape(rows, cols)
