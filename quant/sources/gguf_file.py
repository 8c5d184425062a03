"""A strict reader of GGUF headers (versions 2 and 3, little-endian): metadata and where the tensors lie.

Every count and length is checked against the rest of the file before anything is allocated, so that a hostile file
causes only an error. Source: ggml's docs/gguf.md. Does not know what any key or tensor means.
"""

import math
import mmap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from quant.errors import SourceError, UnsupportedModelError
from quant.files.plain_file import check_plain_file

_VALUE_DTYPES: Final = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MAX_ENTRIES: Final = 1 << 20
_MAX_KEY_BYTES: Final = 1 << 16
_MAX_DIMENSIONS: Final = 4

# Name, values per block and bytes per block of ggml's tensor types (ggml.h).
_TENSOR_TYPES: Final = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}  # fmt: skip
_OTHER_TYPES: Final = {
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Position of a tensor. shape has rows first, the reverse of GGUF's order; offset is from the start of `path`."""

    path: Path

    type_name: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A validated header. Arrays of numbers are NumPy arrays, arrays of strings lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Reads and validates the header of `path`. Raises SourceError naming the file and what is wrong."""
    try:
        check_plain_file(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(path, data).parse()
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:  # what mmap raises for an empty file
        raise SourceError(f"{path}: is not a GGUF file: {error}") from error


class _Header:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def parse(self) -> GgufFile:
        if self._data[:4] != b"GGUF":
            raise self._refuse("is not a GGUF file: it does not begin with 'GGUF'")
        self._at = 4
        version = self._number("<u4")
        if version not in (2, 3):
            hint = " (big-endian files are not read)" if version in (2 << 24, 3 << 24) else ""
            raise self._refuse(f"has GGUF version {version}; 2 and 3 are read{hint}")
        tensor_count, entry_count = self._number("<u8"), self._number("<u8")
        if max(tensor_count, entry_count) > _MAX_ENTRIES:
            raise self._refuse(f"claims {tensor_count} tensors and {entry_count} metadata entries")
        metadata = self._metadata(entry_count)
        return GgufFile(self._path, metadata, self._tensors(tensor_count, metadata))

    def _metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string(_MAX_KEY_BYTES)
            if key in metadata:
                raise self._refuse(f"has the metadata key {key!r} twice")
            metadata[key] = self._value(key, self._number("<u4"))
        return metadata

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _VALUE_DTYPES:
            raise self._refuse(f"metadata key {key!r} has the unknown value type {kind}")
        value = np.frombuffer(self._take(np.dtype(_VALUE_DTYPES[kind]).itemsize), _VALUE_DTYPES[kind])[0].item()
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> Any:
        kind, count = self._number("<u4"), self._number("<u8")
        if kind == _STRING:
            if count > self._left() // 8:
                raise self._refuse(f"metadata key {key!r} claims {count} strings")
            return [self._string() for _ in range(count)]
        if kind not in _VALUE_DTYPES:
            raise self._refuse(f"metadata key {key!r} is an array of the unsupported value type {kind}")
        dtype = np.dtype(_VALUE_DTYPES[kind])
        if count > self._left() // dtype.itemsize:
            raise self._refuse(f"metadata key {key!r} claims {count} values")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, GgufTensor]:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._refuse(f"has the alignment {alignment!r}, which is not a power of two up to 2**20")
        infos: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._string(_MAX_KEY_BYTES)
            if name in infos:
                raise self._refuse(f"has the tensor {name!r} twice")
            infos[name] = self._tensor_info(name, alignment)
        data_begin = -(-self._at // alignment) * alignment
        tensors = {}
        spans = []
        for name, (type_name, shape, offset, row_bytes) in infos.items():
            begin = data_begin + offset
            end = begin + row_bytes * math.prod(shape[:-1])
            if end > len(self._data):
                raise self._refuse(f"tensor {name!r} ends at byte {end}, past the end of the file ({len(self._data)})")
            tensors[name] = GgufTensor(self._path, type_name, shape, begin, row_bytes)
            spans.append((begin, end, name))
        spans.sort()
        for before, after in pairwise(spans):
            if after[0] < before[1]:
                raise self._refuse(f"tensors {before[2]!r} and {after[2]!r} overlap")
        return tensors

    def _tensor_info(self, name: str, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        dimensions = self._number("<u4")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._refuse(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._number("<u8") for _ in range(dimensions))[::-1]
        kind, offset = self._number("<u4"), self._number("<u8")
        if kind in _OTHER_TYPES:
            raise UnsupportedModelError(
                f"{self._path}: tensor {name!r} is {_OTHER_TYPES[kind]}, which is not read; take the model's file in"
                " another type, as Q4_K_M or Q8_0"
            )
        if kind not in _TENSOR_TYPES:
            raise self._refuse(f"tensor {name!r} has the unsupported type number {kind}")
        type_name, block_values, block_bytes = _TENSOR_TYPES[kind]
        if 0 in shape or math.prod(shape) > 1 << 48:
            raise self._refuse(f"tensor {name!r} has the impossible shape {shape}")
        if shape[-1] % block_values:
            raise self._refuse(
                f"tensor {name!r}: {shape[-1]} values a row are not a multiple of {type_name}'s {block_values}"
            )
        if offset % alignment:
            raise self._refuse(f"tensor {name!r} is not aligned to {alignment} bytes")
        return type_name, shape, offset, shape[-1] // block_values * block_bytes

    def _string(self, limit: int | None = None) -> str:
        size = self._number("<u8")
        if limit is not None and size > limit:
            raise self._refuse(f"has a name of {size} bytes at byte {self._at}")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._refuse(f"has a string that is not UTF-8 before byte {self._at}") from error

    def _number(self, dtype: str) -> int:
        return int.from_bytes(self._take(int(dtype[2])), "little")

    def _left(self) -> int:
        return len(self._data) - self._at

    def _take(self, size: int) -> bytes:
        if size > self._left():
            raise self._refuse(f"ends inside its header: {size} bytes wanted at byte {self._at}")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _refuse(self, reason: str) -> SourceError:
        return SourceError(f"{self._path}: {reason}")
