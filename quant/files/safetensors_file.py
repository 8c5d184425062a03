"""A strict reader of safetensors headers: validates once, then returns positions; maps and executes nothing.

It is our own so that every way a file can be wrong has its message. The format: 8 bytes little-endian header length, a
JSON header, then the tensors' bytes, which the header must cover exactly.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quant.errors import SourceError
from quant.files.plain_file import check_plain_file

_MAX_HEADER_BYTES: Final = 100_000_000
_ELEMENT_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Position of a tensor's bytes: `offset` from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Reads the tensors and the `__metadata__` of a file. Raises SourceError naming the file and what is wrong."""
    try:
        file_bytes = check_plain_file(path)
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise SourceError(f"{path}: is not a safetensors file: shorter than 8 bytes")
            header_bytes = int.from_bytes(prefix, "little")
            if header_bytes > min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise SourceError(f"{path}: claims a header of {header_bytes} bytes in a file of {file_bytes}")
            text = file.read(header_bytes)
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error
    header = _parse_json(path, text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SourceError(f"{path}: __metadata__ is not a map of strings")
    data_begin = 8 + header_bytes
    tensors = {name: _stored_tensor(path, name, entry, data_begin) for name, entry in header.items()}
    _check_cover(path, tensors, data_begin, file_bytes)
    return tensors, metadata


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise SourceError(f"{path}: its header names something twice")
        return result

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise SourceError(f"{path}: its header is not a JSON object")
    return header


def _stored_tensor(path: Path, name: str, entry: Any, data_begin: int) -> StoredTensor:
    def refuse(reason: str) -> SourceError:
        return SourceError(f"{path}: tensor {name!r} {reason}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise refuse("is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise refuse(f"has the unknown type {dtype!r}")
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise refuse("has a shape or offsets that are not non-negative integers")
    begin, end = offsets
    size = math.prod(shape) * _ELEMENT_BYTES[dtype]
    if end - begin != size:
        raise refuse(f"of shape {shape} needs {size} bytes but has {end - begin}")
    return StoredTensor(dtype, tuple(shape), data_begin + begin, size)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_cover(path: Path, tensors: dict[str, StoredTensor], begin: int, end: int) -> None:
    position = begin
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size_bytes)):
        if tensor.offset != position:
            raise SourceError(f"{path}: tensor {name!r} leaves a hole before it or overlaps the one before it")
        position += tensor.size_bytes
    if position != end:
        raise SourceError(f"{path}: its tensors end at byte {position} but the file at byte {end}")
