"""The weight types, and a quantized matrix: its codes and scales before they are packed.

Knows the names of the types and the shapes that go with them; not how codes are chosen (`int4`, `int8`, `lut4`) nor how
they are packed (`packed.packed_matrix`).
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quant.errors import TensorError

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

IntegerType = Literal["sym_int4", "asym_int4", "lut4", "int8"]
FloatType = Literal["fp16", "bf16", "fp32"]
WeightType = Literal["sym_int4", "asym_int4", "lut4", "int8", "fp16", "bf16", "fp32"]

WEIGHT_TYPES: Final[tuple[WeightType, ...]] = get_args(WeightType)
INTEGER_TYPES: Final[tuple[IntegerType, ...]] = get_args(IntegerType)
FLOAT_TYPES: Final[tuple[FloatType, ...]] = get_args(FloatType)
GROUP_SIZES: Final = (32, 64, 128)
TABLE_LIMIT: Final = 127
"""A look-up table's entries are integers of at most this magnitude: the engine multiplies them as int8."""


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """Codes of a matrix [rows, cols] that share a scale by `group` inputs.

    codes: uint8 [rows, cols], 0..15 or, for int8, q + 128. scales and minima: fp16 [rows, cols // group].
    sym_int4: w = scale * (code - 8); asym_int4: w = scale * code + minimum; lut4: w = scale * table[code], 16
    integers of at most TABLE_LIMIT; int8: w = scale * (code - 128).
    """

    type: IntegerType
    group: int
    codes: U8
    scales: F16
    minima: F16 | None = None
    table: tuple[int, ...] | None = None


def check_group(name: str, cols: int, group: int) -> None:
    """Raises TensorError, naming the group sizes that fit, if `cols` is not a multiple of `group`."""
    if group not in GROUP_SIZES:
        raise TensorError(name, f"group size {group} is not one of {', '.join(map(str, GROUP_SIZES))}")
    if cols % group:
        fitting = [str(size) for size in GROUP_SIZES if cols % size == 0]
        advice = f"use {' or '.join(fitting)}" if fitting else "no group size fits: use fp16, bf16 or fp32"
        raise TensorError(name, f"last dimension {cols} is not a multiple of the group size {group}; {advice}")


def grouped(name: str, values: NDArray[np.generic], group: int) -> F32:
    """Views a floating-point matrix [rows, cols] as fp32 [rows, cols // group, group].

    Raises TensorError for a shape, a group or an element type that does not fit.
    """
    if not np.issubdtype(values.dtype, np.floating):
        raise TensorError(name, f"{values.dtype} is not a floating-point type")
    if values.ndim != 2:
        raise TensorError(name, f"has {values.ndim} dimensions; a weight matrix has 2")
    rows, cols = values.shape
    check_group(name, cols, group)
    return values.astype(np.float32, copy=False).reshape(rows, cols // group, group)


def fp16_scales(name: str, scales: F32) -> F16:
    """Rounds scales to fp16. Raises TensorError where they are not finite or leave fp16's range."""
    if not np.isfinite(scales).all():
        raise TensorError(name, "holds NaN or infinite values")
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise TensorError(name, f"a scale of {np.abs(scales).max():.3g} exceeds fp16's range; use bf16 or fp32")
    return rounded
