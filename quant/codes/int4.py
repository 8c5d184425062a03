"""The four-bit codes, in NumPy: these functions define the values that every kernel must agree with.

Every step is fp32, and each operation is rounded by itself (no fused multiply-add), so a result does not depend on the
machine. Codes are computed with the fp32 scale; the scale is rounded to fp16 (nearest even) only when it is stored.
llama.cpp's Q4_0 does the same, and sym_int4 with group 32 has the same codes. A group whose scale rounds to zero in
fp16 becomes zero.
"""

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32, QuantizedMatrix, fp16_scales, grouped


def quantize_sym_int4(name: str, values: NDArray[np.generic], group: int) -> QuantizedMatrix:
    """Quantizes [rows, cols]: d = (value of largest magnitude) / -8, q = floor(x / d + 8.5).

    The value of largest magnitude (the first one, if several are equal) gets code 0, so that all 16 codes are in use;
    its negative is clipped to 15. Source: ggml's quantize_row_q4_0_ref.

    Raises:
        TensorError: not floating point, not a matrix, not a multiple of the group, NaN, infinite or out of
        range.
    """
    return sym_int4_blocks(name, grouped(name, values, group))


def sym_int4_blocks(name: str, x: F32) -> QuantizedMatrix:
    """Quantizes weights [rows, groups, inputs] with groups of any size; see quantize_sym_int4."""
    high, low = x.max(axis=-1), x.min(axis=-1)
    extreme = np.where(high > -low, high, low)
    ties = (high == -low) & (high > 0)
    if ties.any():
        tied = x[ties]
        extreme[ties] = tied[np.arange(len(tied)), np.abs(tied).argmax(axis=-1)]
    scales = extreme / np.float32(-8)
    stored = fp16_scales(name, scales)
    codes = x * _reciprocal(scales, stored != 0)[..., None]
    codes += np.float32(8.5)
    np.minimum(codes, np.float32(15), out=codes)
    return QuantizedMatrix("sym_int4", x.shape[-1], codes.astype(np.uint8).reshape(len(x), -1), stored)


def quantize_asym_int4(name: str, values: NDArray[np.generic], group: int) -> QuantizedMatrix:
    """Quantizes with a zero point: nd = 15 / (max - min), zp = round(nd * min), q = round(nd * x) - zp.

    round(v) is floor(v + 1/2), which keeps max at 15 when min is at 0. Stored are d = (max - min) / 15 and the minimum
    m = zp * d, so that w = d * q + m. A group whose d rounds to zero in fp16 is constant: d = 0, m = min.

    Raises:
        TensorError: as quantize_sym_int4.
    """
    return asym_int4_blocks(name, grouped(name, values, group))


def asym_int4_blocks(name: str, x: F32) -> QuantizedMatrix:
    """Quantizes weights [rows, groups, inputs] with groups of any size; see quantize_asym_int4."""
    high, low = x.max(axis=-1), x.min(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = (high - low) / np.float32(15)
    stored = fp16_scales(name, steps)
    per_step = _reciprocal(steps, stored != 0)
    zero_points = np.floor(per_step * low + np.float32(0.5))
    codes = x * per_step[..., None]
    codes += np.float32(0.5)
    np.floor(codes, out=codes)
    codes -= zero_points[..., None]
    np.clip(codes, np.float32(0), np.float32(15), out=codes)
    minima = fp16_scales(name, np.where(stored != 0, zero_points * steps, low))
    return QuantizedMatrix("asym_int4", x.shape[-1], codes.astype(np.uint8).reshape(len(x), -1), stored, minima)


def dequantize_int4(matrix: QuantizedMatrix) -> F32:
    """The fp32 matrix [rows, cols] that the codes stand for (sym_int4 or asym_int4)."""
    rows, cols = matrix.codes.shape
    codes = matrix.codes.reshape(rows, cols // matrix.group, matrix.group).astype(np.float32)
    scales = matrix.scales.astype(np.float32)[..., None]
    if matrix.minima is None:
        values = scales * (codes - np.float32(8))
    else:
        values = scales * codes + matrix.minima.astype(np.float32)[..., None]
    return values.reshape(rows, cols)


def _reciprocal(scales: F32, usable: NDArray[np.bool_]) -> F32:
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=usable)
