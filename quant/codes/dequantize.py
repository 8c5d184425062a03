"""Converts codes of any type back to floats."""

from quant.codes.int4 import dequantize_int4
from quant.codes.int8 import dequantize_int8
from quant.codes.lut4 import dequantize_lut4
from quant.codes.matrix import F32, QuantizedMatrix


def dequantize(matrix: QuantizedMatrix) -> F32:
    """The fp32 matrix [rows, cols] that codes of any type stand for."""
    if matrix.type == "int8":
        return dequantize_int8(matrix)
    return dequantize_lut4(matrix) if matrix.type == "lut4" else dequantize_int4(matrix)
