"""The packed model.safetensors: its writer, and a reader for export, tests and evaluation.

Decides where tensors lie and what the header says (docs/architecture.md, "A converted model"); the bytes of one matrix
are `packed_matrix`'s. The engine has a reader of its own, in C++, which maps the file. Does not know how codes are
chosen.
"""

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, U8, QuantizedMatrix
from quant.errors import SourceError
from quant.families.description import Decoder, decoder_from
from quant.files.safetensors_file import StoredTensor, read_header
from quant.packed.packed_matrix import (
    TILE_OUTPUTS,
    MatrixInfo,
    described_matrix,
    unpack_float,
    unpack_quantized,
    unpacked,
)

FORMAT: Final = "redoubt-packed"
LAYOUT_VERSION: Final = "2"
FILE_NAME: Final = "model.safetensors"
ALIGNMENT_BYTES: Final = 64
_WRITE_BYTES: Final = 8 << 20  # a multiple of 2 MiB, the size of a huge page
_PADDING_NAME: Final = "redoubt.padding"


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """All contents of the header, known before the first weight is read.

    decoder: the description that the engine computes by. matrices and vectors (numbers of elements) by name. `source`
    is a name and a SHA-256 fingerprint.
    """

    decoder: Decoder

    matrices: Mapping[str, MatrixInfo]
    vectors: Mapping[str, int]
    qtype: str
    group_size: int
    source: str

    def order(self) -> list[tuple[str, int]]:
        """(name, bytes) of every tensor as the file holds them: each begins at a multiple of 64.

        Matrices are multiples of 64 bytes, and so are most vectors. After one that is not, a U8 tensor fills the gap,
        because the format allows no holes.
        """
        tensors = [(name, info.size_bytes) for name, info in self.matrices.items()]
        vectors = sorted(((name, 4 * size) for name, size in self.vectors.items()), key=lambda item: item[1] % 64 != 0)
        for number, (name, size) in enumerate(vectors):
            tensors.append((name, size))
            if size % ALIGNMENT_BYTES and number + 1 < len(vectors):
                tensors.append((f"{_PADDING_NAME}.{number}", -size % ALIGNMENT_BYTES))
        return tensors

    def header(self) -> bytes:
        """Returns the file's first bytes, up to the first tensor."""
        matrices = {name: info.described() for name, info in self.matrices.items()}
        header: dict[str, Any] = {
            "__metadata__": {
                "format": FORMAT,
                "layout_version": LAYOUT_VERSION,
                "qtype": self.qtype,
                "group_size": str(self.group_size),
                "source": self.source,
                "decoder": json.dumps(self.decoder.to_dict(), separators=(",", ":")),
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
        """Size of the whole file."""
        return len(self.header()) + sum(size for _, size in self.order())


class PackedWriter:
    """Writes a packed file from front to back: the tensors of `plan.order()`, each as a run of arrays.

    Writes are large and at multiples of their size, so that file systems which can do so keep the file in huge pages;
    a model that is loaded from the page cache is then mapped in huge pages.
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
        """Syncs the file to the disk, unless there was an error, and closes it."""
        with self._file:
            if kind is None:
                assert not self._waiting, f"{self._waiting[0][0]} was planned and not written"
                self._flush()
                os.fsync(self._file.fileno())


class PackedFile:
    """Reads a packed file tensor by tensor; everything is validated on opening. Raises SourceError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stored, self.metadata = read_header(path)
        if self.metadata.get("format") != FORMAT or self.metadata.get("layout_version") != LAYOUT_VERSION:
            raise SourceError(f"{path}: is not a {FORMAT} file of layout version {LAYOUT_VERSION}")
        try:
            entries = json.loads(self.metadata.get("matrices", ""))
            self.matrices = {name: described_matrix(**entry) for name, entry in entries.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise SourceError(f"{path}: its 'matrices' metadata is damaged: {error}") from error
        for name, info in self.matrices.items():
            stored = self._stored.get(name)
            if stored is None or stored.dtype != "U8" or stored.shape != (info.tiles, info.tile_bytes):
                raise SourceError(f"{path}: tensor {name!r} does not hold what 'matrices' says")
        try:
            self.decoder = decoder_from(json.loads(self.metadata.get("decoder", "")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SourceError(f"{path}: its 'decoder' metadata is damaged: {error}") from error

    @property
    def vectors(self) -> list[str]:
        """The names of norms and biases."""
        return [name for name, stored in self._stored.items() if stored.dtype == "F32"]

    def vector(self, name: str) -> F32:
        """A norm's weight or a bias, fp32 [n]."""
        return self._bytes(self._stored[name]).view(np.float32)

    def packed(self, name: str) -> U8:
        """A matrix' packed bytes, uint8 [tiles, tile_bytes]."""
        info = self.matrices[name]
        return self._bytes(self._stored[name]).reshape(info.tiles, info.tile_bytes)

    def codes(self, name: str) -> QuantizedMatrix:
        """Returns the codes and scales of an integer matrix."""
        return unpack_quantized(self.packed(name), self.matrices[name])

    def dequantize(self, name: str) -> F32:
        """The matrix as fp32 [rows, cols]."""
        return unpacked(self.packed(name), self.matrices[name])

    def dequantized_tiles(self, name: str, first: int, end: int) -> F32:
        """Returns the rows of output tiles [first, end) as fp32; the last tile may have fewer rows."""
        info = self.matrices[name]
        end = min(end, info.tiles)
        part = info.of_rows(min(info.rows, end * TILE_OUTPUTS) - first * TILE_OUTPUTS)
        offset = self._stored[name].offset + first * info.tile_bytes
        raw = np.fromfile(self._path, np.uint8, (end - first) * info.tile_bytes, offset=offset).reshape(end - first, -1)
        return unpack_float(raw, part) if not info.group else dequantize(unpack_quantized(raw, part))

    def _bytes(self, stored: StoredTensor) -> U8:
        return np.fromfile(self._path, np.uint8, stored.size_bytes, offset=stored.offset)


def is_packed_model(folder: Path) -> bool:
    """Whether a folder is a converted model, and so may be replaced."""
    try:
        return read_header(folder / FILE_NAME)[1].get("format") == FORMAT
    except SourceError:
        return False
