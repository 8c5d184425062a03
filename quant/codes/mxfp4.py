"""OCP's MXFP4: groups of 32 four-bit floats with a shared power of two. It is lut4 with a table of doubled values.

The codes are kept bit for bit; the scale 2^(e - 127) becomes half of it, as the table has twice the values of E2M1.
Source: OCP Microscaling Formats 1.0, sections 5.3.3 and 5.4.1. Does not know how files arrange codes and scales.
"""

from typing import Final

import numpy as np

from quant.codes.matrix import F16, U8, QuantizedMatrix
from quant.errors import TensorError

TABLE: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of E2M1; code 8 is -0."""
GROUP: Final = 32
_HALF_BIAS: Final = 128
_SMALLEST, _LARGEST = -24, 15  # the powers of two that fp16 has


def mxfp4_matrix(name: str, codes: U8, exponents: U8) -> QuantizedMatrix:
    """codes [rows, cols], 0..15, and biased exponents [rows, cols / 32] as a lut4 matrix.

    Raises TensorError where a scale is not a number or outside fp16's range and its group is not all zeros.
    """
    powers = exponents.astype(np.int32) - _HALF_BIAS
    outside = (powers < _SMALLEST) | (powers > _LARGEST)
    if outside.any():
        zeros = ~(codes.reshape(*exponents.shape, GROUP) & np.uint8(7)).any(axis=-1)
        if (outside & ~zeros).any():
            power = powers[outside & ~zeros][0] + 1
            raise TensorError(name, f"has the MXFP4 scale 2^{power}, which is outside fp16's range; use bf16 weights")
    scales: F16 = np.where(outside, 0.0, np.ldexp(1.0, np.where(outside, 0, powers))).astype(np.float16)
    return QuantizedMatrix("lut4", GROUP, codes, scales, table=TABLE)
