"""Eight-bit floats of the kind E4M3, which has no infinities, as bit patterns, widened exactly.

NumPy has no such type.
"""

from typing import Final

import numpy as np

from quant.codes.matrix import F32, U8


def _values() -> F32:
    codes = np.arange(256)
    exponents, mantissas = codes >> 3 & 15, (codes & 7) / 8
    magnitudes = np.where(exponents == 0, mantissas * 2.0**-6, (1 + mantissas) * 2.0 ** (exponents - 7))
    magnitudes[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, magnitudes, -magnitudes).astype(np.float32)


_VALUES: Final = _values()


def e4m3_to_fp32(codes: U8) -> F32:
    """Widens E4M3 bit patterns, exactly; 0x7F and 0xFF are NaN. Source: OCP's specification of 8-bit floats, 5.2."""
    return _VALUES[codes]
