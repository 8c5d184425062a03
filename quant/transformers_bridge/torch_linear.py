"""A torch module whose weight is a packed matrix, multiplied by the native engine.

Activations are quantized to int8 by group, as in the engine; fp32 tensors are passed without a copy. Imports torch,
which serving does not. Inference only.
"""

import atexit
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels import _native
from quant.codes.int4 import quantize_asym_int4, quantize_sym_int4
from quant.codes.int8 import quantize_int8
from quant.codes.lut4 import TABLES, quantize_lut4
from quant.codes.matrix import QuantizedMatrix
from quant.conversion.plan import weight_type
from quant.packed.native_model import available_threads
from quant.packed.packed_matrix import TILE_OUTPUTS, pack_quantized

_ROWS = 1024  # rows of a weight that are quantized at a time


@cache
def _runner() -> _native.LinearRunner:
    """One thread pool for all layers of the process; it ends before the interpreter does."""
    atexit.register(_runner.cache_clear)
    return _native.LinearRunner(available_threads())


class PackedLinear(torch.nn.Module):
    """y = x W^T + b with W [out_features, in_features] packed; x is of any float type and any leading shape."""

    packed: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, packed: torch.Tensor, rows: int, cols: int, qtype: str, group: int, bias: torch.Tensor | None):
        """packed: uint8 [tiles, tile_bytes], as `pack_weight` returns it."""
        super().__init__()
        self.in_features, self.out_features = cols, rows
        self.qtype, self.group_size = qtype, group
        self._type, self._table = weight_type(qtype), TABLES.get(qtype)
        self._matrix: tuple[int, _native.PackedMatrix] | None = None
        self.register_buffer("packed", packed)
        self.register_buffer("bias", None if bias is None else bias.detach().float().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features], of x's type."""
        rows = x.detach().reshape(-1, self.in_features).float().contiguous()
        y = torch.empty(len(rows), self.out_features)
        _runner().run(self._packed_matrix(), rows, y, bias=self.bias)
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def _packed_matrix(self) -> _native.PackedMatrix:
        """The buffer as the engine's matrix, checked at its first use, and again when torch has moved it."""
        address = self.packed.data_ptr()
        if self._matrix is None or self._matrix[0] != address:
            checked = _native.PackedMatrix(
                self.packed, self._type, self.out_features, self.in_features, self.group_size, table=self._table
            )
            self._matrix = address, checked
        return self._matrix[1]

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling and copying: everything but the engine's view of the buffer."""
        return {**self.__dict__, "_matrix": None}

    def extra_repr(self) -> str:
        """Text for print()."""
        return f"{self.in_features}, {self.out_features}, {self.qtype}, group {self.group_size}"


def pack_weight(name: str, weight: torch.Tensor, qtype: str, group: int) -> torch.Tensor:
    """Rounds and packs a weight [out_features, in_features] of any float type. Raises TensorError naming it."""
    kind = weight_type(qtype)
    rows, cols = weight.shape
    size = _native.packed_bytes(kind, rows, cols, group)
    packed = _aligned(-(-rows // TILE_OUTPUTS), size // -(-rows // TILE_OUTPUTS))
    for begin in range(0, rows, _ROWS):
        tiles = pack_quantized(round_weight(name, weight[begin : begin + _ROWS], qtype, group))
        packed[begin // TILE_OUTPUTS : begin // TILE_OUTPUTS + len(tiles)] = tiles
    return torch.from_numpy(packed)


def round_weight(name: str, weight: torch.Tensor, qtype: str, group: int) -> QuantizedMatrix:
    """Rounds a weight [out_features, in_features] of any float type to nearest. Raises TensorError naming it."""
    quantizers: dict[str, Callable[[str, NDArray[np.generic], int], QuantizedMatrix]] = {
        "sym_int4": quantize_sym_int4, "asym_int4": quantize_asym_int4, "int8": quantize_int8,
        **{name: partial(quantize_lut4, table=table) for name, table in TABLES.items()},
    }  # fmt: skip
    return quantizers[qtype](name, weight.detach().float().numpy(), group)


def _aligned(rows: int, cols: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """uint8 [rows, cols] at an address that is a multiple of 64, as kernels require."""
    memory = np.empty(rows * cols + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + rows * cols].reshape(rows, cols)
