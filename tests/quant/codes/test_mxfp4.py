"""MXFP4 keeps its codes and means what the standard says."""

import numpy as np
import pytest

from quant.codes.dequantize import dequantize
from quant.codes.mxfp4 import mxfp4_matrix
from quant.errors import TensorError

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_every_code_at_every_scale_of_fp16() -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (40, 2))
    exponents = np.arange(104, 144, dtype=np.uint8)[:, None]  # 2^-23 to 2^16
    matrix = mxfp4_matrix("w", codes, exponents)
    np.testing.assert_array_equal(matrix.codes, codes)
    meant = E2M1[codes] * 2.0 ** (exponents.astype(np.float64) - 127)
    np.testing.assert_array_equal(dequantize(matrix), meant)


@pytest.mark.parametrize("exponent", [0, 103, 144, 255])
def test_scales_outside_fp16_are_refused(exponent: int) -> None:
    codes = np.zeros((1, 64), np.uint8)
    codes[0, 40] = 1
    with pytest.raises(TensorError, match="MXFP4 scale"):
        mxfp4_matrix("w", codes, np.array([[120, exponent]], np.uint8))
    codes[0, 40] = 8  # -0: then the scale does not matter
    assert not dequantize(mxfp4_matrix("w", codes, np.array([[120, exponent]], np.uint8))).any()
