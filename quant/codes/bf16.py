"""bfloat16 as bit patterns: widened exactly, or rounded to nearest even. NumPy has no such type."""

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32


def bf16_to_fp32(raw: NDArray[np.uint16]) -> F32:
    """Widens bfloat16 bit patterns, exactly."""
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def fp32_to_bf16(values: F32) -> NDArray[np.uint16]:
    """The bit patterns nearest to finite values, of two that are equally near the even one."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
