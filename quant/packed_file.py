"""The packed model.safetensors: its one writer, and a reader that turns it back into numbers.

The layout of a matrix is `kernels/packed_matrix.h`'s and its bytes are packed by the native engine; this file
decides where tensors lie and what the header says (docs/architecture.md, "A converted model"). The engine's
own reader is `kernels/weights.cc`; it maps the file, the one here reads it, for tests and evaluation. Does not
know how codes are chosen.
"""

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import numpy as np

from kernels import _native
from quant.errors import SourceError
from quant.int4 import dequantize_int4
from quant.int8 import dequantize_int8
from quant.lut4 import dequantize_lut4
from quant.matrix import F16, F32, U8, WEIGHT_TYPES, QuantizedMatrix, WeightType
from quant.sources.file_rows import bf16_to_fp32
from quant.sources.safetensors_file import StoredTensor, read_header

FORMAT: Final = "redoubt-packed"
LAYOUT_VERSION: Final = "1"
FILE_NAME: Final = "model.safetensors"
ALIGNMENT_BYTES: Final = 64
TILE_OUTPUTS: Final = 32
_WRITE_BYTES: Final = 8 << 20  # several huge pages, and a multiple of their 2 MiB
_PADDING_NAME: Final = "redoubt.padding"


@dataclass(frozen=True, slots=True)
class MatrixInfo:
    """What `__metadata__` says of a packed matrix; group is 0 for bf16 and fp32, and only lut4 has a table."""

    type: WeightType
    rows: int
    cols: int
    group: int
    table: tuple[int, ...] | None = None

    def described(self) -> dict[str, Any]:
        """The entry in `matrices`."""
        entry: dict[str, Any] = {"type": self.type, "rows": self.rows, "cols": self.cols, "group": self.group}
        return entry if self.table is None else entry | {"table": self.table}

    def of_rows(self, rows: int) -> "MatrixInfo":
        """The same matrix with only so many rows."""
        return replace(self, rows=rows)

    @property
    def tiles(self) -> int:
        """Output tiles of 32, the last one padded."""
        return -(-self.rows // TILE_OUTPUTS)

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile: its blocks along the inputs (packed_matrix.h)."""
        if self.type == "bf16":
            return self.cols // 2 * 128
        if self.type == "fp32":
            return self.cols * 128
        block = {"sym_int4": 16, "asym_int4": 16, "lut4": 16, "int8": 32}[self.type] * self.group
        return self.cols // self.group * (block + (128 if self.type == "asym_int4" else 64))

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.tiles * self.tile_bytes


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """All that the header holds, known before the first weight is read.

    matrices and vectors (numbers of elements) by name. `source` is a name and a SHA-256 fingerprint.
    """

    matrices: Mapping[str, MatrixInfo]
    vectors: Mapping[str, int]
    qtype: str
    group_size: int
    source: str

    def order(self) -> list[tuple[str, int]]:
        """(name, bytes) of every tensor as the file holds them: each begins at a multiple of 64.

        Matrices are multiples of 64 bytes, as are most vectors; after one that is not, a U8 tensor fills the
        gap, since the format allows no holes.
        """
        tensors = [(name, info.size_bytes) for name, info in self.matrices.items()]
        vectors = sorted(((name, 4 * size) for name, size in self.vectors.items()), key=lambda item: item[1] % 64 != 0)
        for number, (name, size) in enumerate(vectors):
            tensors.append((name, size))
            if size % ALIGNMENT_BYTES and number + 1 < len(vectors):
                tensors.append((f"{_PADDING_NAME}.{number}", -size % ALIGNMENT_BYTES))
        return tensors

    def header(self) -> bytes:
        """The file's first bytes, up to the first tensor."""
        matrices = {name: info.described() for name, info in self.matrices.items()}
        header: dict[str, Any] = {
            "__metadata__": {
                "format": FORMAT,
                "layout_version": LAYOUT_VERSION,
                "qtype": self.qtype,
                "group_size": str(self.group_size),
                "source": self.source,
                "matrices": json.dumps(matrices, separators=(",", ":")),
            }
        }
        position = 0
        for name, size in self.order():
            if name in self.matrices:
                info = self.matrices[name]
                dtype, shape = "U8", [info.tiles, info.tile_bytes]
            else:
                dtype, shape = ("F32", [self.vectors[name]]) if name in self.vectors else ("U8", [size])
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
            position += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
        return len(text).to_bytes(8, "little") + text

    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.header()) + sum(size for _, size in self.order())


class PackedWriter:
    """Writes a packed file from front to back: the tensors of `plan.order()`, each as a run of arrays.

    It does so in large writes at multiples of their size: file systems that can then keep the file in huge pages,
    and a model that is loaded soon, or from a warm cache, is mapped in them.
    """

    def __init__(self, path: Path, plan: PackedPlan) -> None:
        self._waiting = deque(plan.order())
        self._file = path.open("xb", buffering=0)
        self._buffer = memoryview(bytearray(_WRITE_BYTES))
        self._buffered_bytes = 0
        self._write(plan.header())

    def write_tensor(self, name: str, pieces: Iterable[U8 | F32]) -> None:
        """Writes the next tensor; it must be `name`, and the pieces must add up to its planned size."""
        expected, size = self._waiting.popleft()
        assert name == expected, f"{name} comes where {expected} was planned"
        written = 0
        for piece in pieces:
            written += self._write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        assert written == size, f"{name}: {written} bytes written, {size} planned"
        while self._waiting and self._waiting[0][0].startswith(_PADDING_NAME):
            self._write(bytes(self._waiting.popleft()[1]))

    def _write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data)
        while rest:
            part = rest[: _WRITE_BYTES - self._buffered_bytes]
            self._buffer[self._buffered_bytes : self._buffered_bytes + len(part)] = part
            self._buffered_bytes += len(part)
            rest = rest[len(part) :]
            if self._buffered_bytes == _WRITE_BYTES:
                self._flush()
        return len(data)

    def _flush(self) -> None:
        rest = self._buffer[: self._buffered_bytes]
        while rest:
            rest = rest[self._file.write(rest) :]
        self._buffered_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Forces the bytes to the disk, if all went well, and closes the file."""
        with self._file:
            if kind is None:
                assert not self._waiting, f"{self._waiting[0][0]} was planned and not written"
                self._flush()
                os.fsync(self._file.fileno())


def pack_quantized(matrix: QuantizedMatrix) -> U8:
    """Packed bytes [tiles, tile_bytes] of codes; a run of rows may begin at any multiple of 32."""
    if matrix.type == "int8":
        return _native.pack_int8(matrix.codes, matrix.scales)
    return _native.pack_int4(matrix.codes, matrix.scales, matrix.minima)


def pack_float(values: F32, weight_type: WeightType) -> U8:
    """Packed bytes [tiles, tile_bytes] of fp32 values as bf16 (rounded to nearest even) or fp32."""
    return _native.pack_float(values, weight_type)


class PackedFile:
    """Reads a packed file tensor by tensor; everything is validated on opening. Raises SourceError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stored, self.metadata = read_header(path)
        if self.metadata.get("format") != FORMAT or self.metadata.get("layout_version") != LAYOUT_VERSION:
            raise SourceError(f"{path}: is no {FORMAT} file of layout version {LAYOUT_VERSION}")
        try:
            entries = json.loads(self.metadata.get("matrices", ""))
            self.matrices = {name: _matrix_info(**entry) for name, entry in entries.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise SourceError(f"{path}: its 'matrices' metadata is damaged: {error}") from error
        for name, info in self.matrices.items():
            stored = self._stored.get(name)
            if stored is None or stored.dtype != "U8" or stored.shape != (info.tiles, info.tile_bytes):
                raise SourceError(f"{path}: tensor {name!r} does not hold what 'matrices' says")

    @property
    def vectors(self) -> list[str]:
        """The names of norms and biases."""
        return [name for name, stored in self._stored.items() if stored.dtype == "F32"]

    def vector(self, name: str) -> F32:
        """A norm's weight or a bias, fp32 [n]."""
        return self._bytes(self._stored[name]).view(np.float32)

    def packed(self, name: str) -> U8:
        """A matrix' bytes as they are, uint8 [tiles, tile_bytes]."""
        info = self.matrices[name]
        return self._bytes(self._stored[name]).reshape(info.tiles, info.tile_bytes)

    def codes(self, name: str) -> QuantizedMatrix:
        """The codes and scales of an integer matrix."""
        return unpack_quantized(self.packed(name), self.matrices[name])

    def dequantize(self, name: str) -> F32:
        """The matrix [rows, cols] that is stored, in fp32."""
        return unpacked(self.packed(name), self.matrices[name])

    def dequantized_tiles(self, name: str, first: int, end: int) -> F32:
        """The rows of output tiles [first, end), as many as there are, in fp32."""
        info = self.matrices[name]
        end = min(end, info.tiles)
        part = replace(info, rows=min(info.rows, end * TILE_OUTPUTS) - first * TILE_OUTPUTS)
        offset = self._stored[name].offset + first * info.tile_bytes
        raw = np.fromfile(self._path, np.uint8, (end - first) * info.tile_bytes, offset=offset).reshape(end - first, -1)
        return _unpack_float(raw, part) if not info.group else dequantize(unpack_quantized(raw, part))

    def _bytes(self, stored: StoredTensor) -> U8:
        return np.fromfile(self._path, np.uint8, stored.size_bytes, offset=stored.offset)


def _matrix_info(table: list[int] | None = None, **entry: Any) -> MatrixInfo:
    entries = () if table is None else tuple(table)
    if len(entries) != (16 if entry.get("type") == "lut4" else 0):
        raise ValueError(f"a table of {len(entries)} entries for {entry.get('type')}")
    if not isinstance(entry.get("type"), str) or entry["type"] not in WEIGHT_TYPES:
        raise ValueError(f"the type {entry.get('type')!r:.80}")
    sizes = [entry.get(name) for name in ("rows", "cols", "group")]
    if any(type(size) is not int or not 0 <= size < 2**31 for size in sizes) or 0 in sizes[:2]:
        raise ValueError(f"rows, cols and group {sizes!r:.80}")
    if (entry["group"] == 0) != (entry["type"] in ("bf16", "fp32")) or (entry["group"] and sizes[1] % entry["group"]):
        raise ValueError(f"groups of {entry['group']} for {entry['type']} and {entry['cols']} inputs")
    return MatrixInfo(**entry, table=entries or None)


def dequantize(matrix: QuantizedMatrix) -> F32:
    """The fp32 matrix [rows, cols] that codes of any type stand for."""
    if matrix.type == "int8":
        return dequantize_int8(matrix)
    return dequantize_lut4(matrix) if matrix.type == "lut4" else dequantize_int4(matrix)


def unpacked(packed: U8, info: MatrixInfo) -> F32:
    """The fp32 matrix [rows, cols] that packed bytes [tiles, tile_bytes] of any type stand for."""
    if info.type in ("bf16", "fp32"):
        return _unpack_float(packed, info)
    return dequantize(unpack_quantized(packed, info))


def unpack_quantized(packed: U8, info: MatrixInfo) -> QuantizedMatrix:
    """Undoes the layout of packed_matrix.h, in NumPy; shares no code with the native packer."""
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


def _unpack_float(packed: U8, info: MatrixInfo) -> F32:
    if info.type == "bf16":
        pairs = packed.view(np.uint16).reshape(info.tiles, info.cols // 2, TILE_OUTPUTS, 2)
        values = bf16_to_fp32(pairs.transpose(0, 2, 1, 3).reshape(-1, info.cols))
    else:
        values = packed.view(np.float32).reshape(info.tiles, info.cols, TILE_OUTPUTS).transpose(0, 2, 1)
        values = values.reshape(-1, info.cols)
    return np.ascontiguousarray(values[: info.rows])
