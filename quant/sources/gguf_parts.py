"""Reads a split GGUF (`NAME-00001-of-00003.gguf` and so on) as one file: the first part's metadata, all tensors.

Source: llama.cpp's gguf-split. Does not know what metadata and tensors mean.
"""

import re
from pathlib import Path
from typing import Final

from quant.errors import SourceError
from quant.sources.gguf_file import GgufFile, read_gguf

_MOST_PARTS: Final = 9999


def read_parts(path: Path) -> tuple[GgufFile, tuple[Path, ...]]:
    """The header of a GGUF and all its files. Raises SourceError: damaged, a part is missing, or not the first part."""
    first = read_gguf(path)
    count = _number(first, "split.count", 1)
    if count <= 1:
        return first, (path,)
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[3]) != count or count > _MOST_PARTS:
        raise SourceError(f"{path}: is one of {count} parts, but is not named like NAME-00001-of-{count:05}.gguf")
    if _number(first, "split.no", 0) != 0:
        raise SourceError(f"{path}: is not the first part; give {match[1]}-00001-of-{match[3]}.gguf")
    files = tuple(path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, count + 1))
    tensors = dict(first.tensors)
    for number, file in enumerate(files[1:], 1):
        if not file.is_file():
            raise SourceError(f"{path}: its part {file.name} is not beside it")
        part = read_gguf(file)
        if (_number(part, "split.no", 0), _number(part, "split.count", 1)) != (number, count):
            raise SourceError(f"{file}: says that it is another part than its name does")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise SourceError(f"{file}: has the tensor {name!r}, which another part has too")
            tensors[name] = tensor
    wanted = _number(first, "split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise SourceError(f"{path}: its {count} parts have {len(tensors)} tensors, it says {wanted}")
    return GgufFile(path, first.metadata, tensors), files


def _number(gguf: GgufFile, key: str, default: int) -> int:
    value = gguf.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise SourceError(f"{gguf.path}: metadata key {key!r} is {value!r:.80}, not a number")
    return value
