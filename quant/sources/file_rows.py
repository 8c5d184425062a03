"""Reads rows of a tensor from a file by position, without mapping it.

A mapped file would count as this process' memory; with reads by position only the buffers do.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

from quant.codes.matrix import U8
from quant.errors import SourceError

RowReader = Callable[[int, int], U8]


def row_reader(path: Path, offset: int, row_bytes: int) -> RowReader:
    """Makes a function of (begin, end) that reads those rows' bytes, uint8 [end - begin, row_bytes]."""
    return lambda begin, end: _read(path, offset + begin * row_bytes, (end - begin) * row_bytes).reshape(-1, row_bytes)


def read_block(path: Path, offset: int, rows: int, row_bytes: int, begin: int, end: int) -> U8:
    """Bytes [begin, end) of each of `rows` rows that follow each other from `offset` on: uint8 [rows, end - begin]."""
    if (begin, end) == (0, row_bytes):
        return _read(path, offset, rows * row_bytes).reshape(rows, row_bytes)
    block = np.empty((rows, end - begin), np.uint8)
    with _opened(path) as file:
        for row in range(rows):
            _fill(path, file.fileno(), block[row], offset + row * row_bytes + begin)
    return block


def _read(path: Path, offset: int, size: int) -> U8:
    buffer = np.empty(size, np.uint8)
    with _opened(path) as file:
        _fill(path, file.fileno(), buffer, offset)
    return buffer


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error


def _fill(path: Path, descriptor: int, buffer: U8, offset: int) -> None:
    view, done = buffer.data, 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise SourceError(f"{path}: ends inside a tensor, at byte {offset + done}")
        done += count
