"""One packed matrix: its entry in the file's header, and packing and unpacking of its bytes.

The layout is `kernels/contract/packed_matrix.h`'s. The native engine packs. Unpacking is NumPy and shares no code with
it; tests, evaluation and export unpack. Does not know where in a file a matrix lies.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from kernels import _native
from quant.codes.bf16 import bf16_to_fp32
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F16, F32, FLOAT_TYPES, U8, WEIGHT_TYPES, QuantizedMatrix, WeightType

TILE_OUTPUTS: Final = 32


@dataclass(frozen=True, slots=True)
class MatrixInfo:
    """A packed matrix as `__metadata__` describes it; group is 0 for floats, and only lut4 has a table.

    rows: those of all `count` stacked experts, each a whole number of tiles.
    """

    type: WeightType
    rows: int
    cols: int
    group: int
    table: tuple[int, ...] | None
    count: int = 1

    def described(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": self.type, "rows": self.rows, "cols": self.cols, "group": self.group}
        if self.count != 1:
            entry["count"] = self.count
        return entry if self.table is None else entry | {"table": self.table}

    def of_rows(self, rows: int) -> "MatrixInfo":
        """Describes `rows` rows of the matrix."""
        return replace(self, rows=rows, count=1)

    @property
    def tiles(self) -> int:
        """Number of output tiles of 32 rows, the last one padded."""
        return -(-self.rows // TILE_OUTPUTS)

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile: its blocks along the inputs (packed_matrix.h)."""
        if self.type == "bf16":
            return self.cols // 2 * 128
        if self.type == "fp16":
            return self.cols * 64
        if self.type == "fp32":
            return self.cols * 128
        block = {"sym_int4": 16, "asym_int4": 16, "lut4": 16, "int8": 32}[self.type] * self.group
        return self.cols // self.group * (block + (128 if self.type == "asym_int4" else 64))

    @property
    def size_bytes(self) -> int:
        return self.tiles * self.tile_bytes


def described_matrix(table: list[int] | None = None, count: int = 1, **entry: Any) -> MatrixInfo:
    """Parses and checks an entry of `matrices`. Raises ValueError or TypeError, saying what is wrong with it."""
    entries = () if table is None else tuple(table)
    if len(entries) != (16 if entry.get("type") == "lut4" else 0):
        raise ValueError(f"a table of {len(entries)} entries for {entry.get('type')}")
    if not isinstance(entry.get("type"), str) or entry["type"] not in WEIGHT_TYPES:
        raise ValueError(f"the type {entry.get('type')!r:.80}")
    sizes = [entry.get(name) for name in ("rows", "cols", "group")]
    if any(type(size) is not int or not 0 <= size < 2**31 for size in sizes) or 0 in sizes[:2]:
        raise ValueError(f"rows, cols and group {sizes!r:.80}")
    if (entry["group"] == 0) != (entry["type"] in FLOAT_TYPES) or (entry["group"] and sizes[1] % entry["group"]):
        raise ValueError(f"groups of {entry['group']} for {entry['type']} and {entry['cols']} inputs")
    if type(count) is not int or count < 1 or (count > 1 and entry["rows"] % (count * TILE_OUTPUTS)):
        raise ValueError(f"{count!r:.80} experts in {entry['rows']} rows, which must be {TILE_OUTPUTS} or more each")
    return MatrixInfo(**entry, table=entries or None, count=count)


def pack_quantized(matrix: QuantizedMatrix) -> U8:
    """Packs a matrix, or a run of its rows that begins at a multiple of 32, to bytes [tiles, tile_bytes]."""
    if matrix.type == "int8":
        return _native.pack_int8(matrix.codes, matrix.scales)
    return _native.pack_int4(matrix.codes, matrix.scales, matrix.minima)


def pack_float(values: F32, weight_type: WeightType) -> U8:
    """Packs fp32 values as fp16 or bf16 (rounded to nearest even) or fp32, to bytes [tiles, tile_bytes]."""
    return _native.pack_float(values, weight_type)


def unpacked(packed: U8, info: MatrixInfo) -> F32:
    """Unpacks bytes [tiles, tile_bytes] of any type to fp32 [rows, cols]."""
    if info.type in FLOAT_TYPES:
        return unpack_float(packed, info)
    return dequantize(unpack_quantized(packed, info))


def unpack_quantized(packed: U8, info: MatrixInfo) -> QuantizedMatrix:
    """Unpacks bytes [tiles, tile_bytes] to codes and scales; NumPy, without any code of the native packer."""
    group, blocks = info.group, info.cols // info.group
    code_bytes = info.group * (32 if info.type == "int8" else 16)
    tiles = packed.reshape(info.tiles, blocks, -1)
    if info.type == "int8":  # [tile, block, kb, c, lane, i], four inputs a kb
        codes = tiles[..., :code_bytes].reshape(info.tiles, blocks, group // 4, 2, 16, 4)
        codes = codes.transpose(0, 3, 4, 1, 2, 5)
    else:  # [tile, block, kb, c, lane, half, i], eight inputs a kb
        pairs = tiles[..., :code_bytes].reshape(info.tiles, blocks, group // 8, 2, 16, 1, 4)
        codes = np.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=5).transpose(0, 3, 4, 1, 2, 5, 6)
    codes = codes.reshape(info.tiles * TILE_OUTPUTS, info.cols)[: info.rows]
    halves = np.ascontiguousarray(tiles[..., code_bytes:]).view(np.float16)

    def per_row(values: F16) -> F16:
        return np.ascontiguousarray(values.transpose(0, 2, 1).reshape(-1, blocks)[: info.rows])

    minima = per_row(halves[..., TILE_OUTPUTS:]) if info.type == "asym_int4" else None
    kind = cast("Any", info.type)
    scales = per_row(halves[..., :TILE_OUTPUTS])
    return QuantizedMatrix(kind, group, np.ascontiguousarray(codes), scales, minima, info.table)


def unpack_float(packed: U8, info: MatrixInfo) -> F32:
    """The fp32 matrix [rows, cols] of the packed bytes of a matrix of floats."""
    if info.type == "bf16":
        pairs = packed.view(np.uint16).reshape(info.tiles, info.cols // 2, TILE_OUTPUTS, 2)
        values = bf16_to_fp32(pairs.transpose(0, 2, 1, 3).reshape(-1, info.cols))
    else:
        stored = packed.view(np.float16).astype(np.float32) if info.type == "fp16" else packed.view(np.float32)
        values = stored.reshape(info.tiles, info.cols, TILE_OUTPUTS).transpose(0, 2, 1)
        values = values.reshape(-1, info.cols)
    return np.ascontiguousarray(values[: info.rows])
