"""Small matrices with inputs of very different power, as language models have them."""

import numpy as np

from quant.codes.dequantize import dequantize
from quant.codes.lut4 import NF4
from quant.codes.matrix import F32, IntegerType, QuantizedMatrix
from quant.methods.problem import MatrixProblem, Rounding

TYPES: tuple[IntegerType, ...] = ("sym_int4", "asym_int4", "lut4")


def rounding(kind: IntegerType, group: int) -> Rounding:
    """That type, lut4 with NF4's table."""
    return Rounding(kind, group, NF4 if kind == "lut4" else None)


def problem(kind: IntegerType = "sym_int4", *, rows: int = 96, cols: int = 192, group: int = 64) -> MatrixProblem:
    generator = np.random.default_rng(7)
    mixing = generator.standard_normal((cols, cols)) * np.exp(generator.standard_normal(cols))
    inputs = (generator.standard_normal((4 * cols, cols)) @ mixing).astype(np.float32)
    weights = generator.standard_normal((rows, cols)).astype(np.float32)
    return MatrixProblem("test", weights, rounding(kind, group), inputs.T @ inputs / np.float32(len(inputs)))


def error(matrix: QuantizedMatrix, asked: MatrixProblem, moments: F32 | None = None) -> float:
    """The mean squared error of the outputs."""
    used = asked.moments if moments is None else moments
    assert used is not None
    off = (asked.weights - dequantize(matrix)).astype(np.float64)
    return float(((off @ used) * off).sum())
