"""The eight-bit codes of weights and of activations, in NumPy, rounded by the same rules as in `int4`."""

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32, QuantizedMatrix, fp16_scales, grouped


def quantize_int8(name: str, values: NDArray[np.generic], group: int) -> QuantizedMatrix:
    """Quantizes [rows, cols]: d = max|x| / 127, q = x / d rounded to nearest, ties away from zero.

    The code is q + 128, in 1..255. With group 32 these are ggml's Q8_0 codes (quantize_row_q8_0_ref).

    Raises:
        TensorError: not floating point, not a matrix, not a multiple of the group, NaN, infinite or out of
        range.
    """
    return int8_blocks(name, grouped(name, values, group))


def int8_blocks(name: str, x: F32) -> QuantizedMatrix:
    """Quantizes weights [rows, groups, inputs] with groups of any size; see quantize_int8."""
    scales = np.maximum(x.max(axis=-1), -x.min(axis=-1)) / np.float32(127)
    stored = fp16_scales(name, scales)
    usable = stored != 0
    per_step = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=usable)
    codes = x * per_step[..., None]
    codes += np.copysign(np.float32(0.5), codes)
    np.trunc(codes, out=codes)
    np.clip(codes, np.float32(-127), np.float32(127), out=codes)
    codes += np.float32(128)
    return QuantizedMatrix("int8", x.shape[-1], codes.astype(np.uint8).reshape(len(x), -1), stored)


def dequantize_int8(matrix: QuantizedMatrix) -> F32:
    """The fp32 matrix [rows, cols] that the codes stand for."""
    rows, cols = matrix.codes.shape
    codes = matrix.codes.reshape(rows, cols // matrix.group, matrix.group).astype(np.float32)
    values = matrix.scales.astype(np.float32)[..., None] * (codes - np.float32(128))
    return values.reshape(rows, cols)


def quantize_activations(x: F32, group: int) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
    """Quantizes activations [rows, cols] by group, as contract/linear.h's QuantizedRows defines it.

    Returns int8 values [rows, cols], fp32 scales and int32 sums of the values, both [rows, cols // group].
    """
    rows, cols = x.shape
    blocks = x.reshape(rows, cols // group, group)
    largest = np.abs(blocks).max(axis=-1)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest != 0)
    values = np.rint(blocks * factor[..., None]).astype(np.int8)
    sums = values.sum(axis=-1, dtype=np.int32)
    return values.reshape(rows, cols), largest / np.float32(127), sums
