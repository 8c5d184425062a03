"""Packs runs of a matrix' rows: rounded to nearest, or with the source's own codes.

Does not know where the packed bytes go.
"""

import threading
from typing import cast

import numpy as np

from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, U8, IntegerType, QuantizedMatrix
from quant.errors import TensorError
from quant.methods.granularity import Extent, round_coarsely
from quant.methods.problem import MatrixProblem, Rounding
from quant.methods.rounding import round_to_nearest
from quant.packed.packed_matrix import TILE_OUTPUTS, MatrixInfo, pack_float, pack_quantized
from quant.sources.source import Source, SourceTensor

_READ_ROWS = 1024
_FIRST_OVER_FP16 = 65520.0  # rounds to infinity


class PieceMaker:
    """Packs pieces of a checkpoint's matrices. Those named in `coarse` have one scale for each `extent`."""

    def __init__(self, checkpoint: Source, extent: Extent, coarse: frozenset[str]) -> None:
        self._checkpoint, self._extent, self._coarse = checkpoint, extent, coarse
        self._lock = threading.Lock()
        self._whole: tuple[str, U8] | None = None  # pieces come in order, so one matrix suffices

    def piece(self, name: str, info: MatrixInfo, begin: int, end: int) -> U8:
        """Packed bytes of rows [begin, end); begin is a multiple of 32. Raises TensorError for NaN or infinite ones."""
        if name not in self._coarse:
            return _packed_piece(self._checkpoint.tensors[name], info, begin, end)
        rounding = Rounding(cast("IntegerType", info.type), info.group, info.table)
        if self._extent == "channel":
            values = read_rows(self._checkpoint.tensors[name], begin, end)
            return pack_quantized(round_coarsely(MatrixProblem(name, values, rounding), "channel"))
        with self._lock:
            if self._whole is None or self._whole[0] != name:
                problem = MatrixProblem(name, read_whole(self._checkpoint.tensors[name]), rounding)
                self._whole = (name, pack_quantized(round_coarsely(problem, "tensor")))
            return self._whole[1][begin // TILE_OUTPUTS : -(-end // TILE_OUTPUTS)]


def keeps(tensor: SourceTensor, info: MatrixInfo) -> bool:
    """Whether the packed matrix has the source's own codes."""
    return (tensor.stored, tensor.group, tensor.table) == (info.type, info.group, info.table)


def read_rows(tensor: SourceTensor, begin: int, end: int) -> F32:
    """Rows [begin, end) of a tensor as fp32 values, whatever type is stored."""
    values = tensor.read(begin, end)
    return dequantize(values) if isinstance(values, QuantizedMatrix) else values


def read_whole(tensor: SourceTensor) -> F32:
    """A whole tensor as fp32 values. Raises TensorError for NaN or infinite ones."""
    return finite_rows(tensor, 0, tensor.shape[0])


def finite_rows(tensor: SourceTensor, begin: int, end: int) -> F32:
    """Rows [begin, end) as fp32 values, read some at a time. Raises TensorError for NaN or infinite ones."""
    result = np.empty((end - begin, *tensor.shape[1:]), np.float32)
    for first in range(begin, end, _READ_ROWS):
        last = min(first + _READ_ROWS, end)
        result[first - begin : last - begin] = read_rows(tensor, first, last)
    if not np.isfinite(result).all():
        raise TensorError(tensor.name, "holds NaN or infinite values")
    return result


def _packed_piece(tensor: SourceTensor, info: MatrixInfo, begin: int, end: int) -> U8:
    values = tensor.read(begin, end)
    if isinstance(values, QuantizedMatrix):
        if (values.type, values.group, values.table) == (info.type, info.group, info.table):
            _check_codes(tensor.name, values)
            return pack_quantized(values)
        values = dequantize(values)
    if info.group:
        rounding = Rounding(cast("IntegerType", info.type), info.group, info.table)
        return pack_quantized(round_to_nearest(MatrixProblem(tensor.name, values, rounding)))
    if not np.isfinite(values).all():
        raise TensorError(tensor.name, "holds NaN or infinite values")
    if info.type == "fp16" and (largest := np.abs(values).max(initial=0)) >= _FIRST_OVER_FP16:
        raise TensorError(tensor.name, f"a weight of {largest:.6g} exceeds fp16's range; use bf16 or fp32")
    return pack_float(values, info.type)


def _check_codes(name: str, matrix: QuantizedMatrix) -> None:
    if not np.isfinite(matrix.scales).all() or (matrix.minima is not None and not np.isfinite(matrix.minima).all()):
        raise TensorError(name, "holds NaN or infinite scales")
    if matrix.type == "int8" and not matrix.codes.all():
        raise TensorError(name, "holds the code -128, which Q8_0 does not use")
