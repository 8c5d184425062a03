"""Assembles the engine's tensors from a checkpoint's stored tensors.

Rows are cut out of fused matrices, put into the engine's order, turned, scaled; quantized rows keep their codes where
rows only move or a scale multiplies. All is read some rows at a time; a matrix whose file has inputs first is read
whole. Knows no family, and no file format.
"""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatch
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, QuantizedMatrix
from quant.errors import SourceError, TensorError
from quant.families.family import Piece, Tensor
from quant.sources.source import FLOATS, SourceTensor, StoredType

_READ_ROWS = 1024


def assemble(
    stored: Mapping[str, SourceTensor], tensors: Mapping[str, Tensor], ignored: tuple[str, ...], where: str
) -> dict[str, SourceTensor]:
    """The engine's tensors by name. ignored: patterns of stored tensors that may be left over; where: for messages.

    Raises SourceError for a stored tensor that is missing or that nothing uses, TensorError for one of a wrong shape.
    """
    used: dict[str, int] = {}
    cache = _LastMatrix()
    assembled = {name: _assembled(name, tensor, stored, used, cache, where) for name, tensor in tensors.items()}
    for name, each in stored.items():
        if name not in used:
            if not any(fnmatch(name, pattern) for pattern in ignored):
                raise SourceError(f"{where}: has the tensor {name!r}, which a model of this configuration does not use")
        elif used[name] < _size(each):
            raise TensorError(name, f"has the shape {each.shape}, which is more than the configuration says")
    return assembled


class _LastMatrix:
    """The last matrix that was read whole, because its pieces are needed one after another."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: tuple[str, int | None] | None = None
        self._values: F32 = np.empty((0, 0), np.float32)

    def get(self, tensor: SourceTensor, index: int | None) -> F32:
        """Returns a stored matrix, or the one with that index in a stack."""
        with self._lock:
            if self._key != (tensor.name, index):
                rows = tensor.shape[-2]
                begin = (index or 0) * rows
                parts = [
                    dequantized(tensor.read(at, min(at + _READ_ROWS, begin + rows)))
                    for at in range(begin, begin + rows, _READ_ROWS)
                ]
                self._key, self._values = (tensor.name, index), np.concatenate(parts)
            return self._values


class _Part:
    """A piece checked against its tensor: the tensor's rows, in order."""

    def __init__(self, piece: Piece, tensor: SourceTensor, cache: _LastMatrix) -> None:
        self.piece, self.tensor, self._cache = piece, tensor, cache
        there = tensor.shape[-1] if piece.transposed else _rows_of_one(tensor, piece.index)
        self._first = 0 if piece.index is None or piece.transposed else piece.index * there
        if piece.index is not None and not 0 <= piece.index < tensor.shape[0]:
            raise TensorError(tensor.name, f"has the shape {tensor.shape}, and no part {piece.index}")
        self._order: NDArray[np.int64] | None = None
        if isinstance(piece.rows, np.ndarray):
            self._order = piece.rows
            self.rows = len(piece.rows)
            fits = not self.rows or (piece.rows.min() >= 0 and piece.rows.max() < there)
        else:
            begin, end, step = (piece.rows or slice(None)).indices(there)
            if step != 1:
                self._order = np.arange(begin, end, step, dtype=np.int64)
            self.rows = len(range(begin, end, step))
            self._first += begin if self._order is None else 0
            wanted = None if piece.rows is None else piece.rows.stop
            fits = self.rows > 0 and (wanted is None or wanted <= there)
        self._cols: NDArray[np.int64] | None = None
        if isinstance(piece.cols, slice):
            fits = fits and piece.cols.stop <= self._stored_cols
            self._cols = np.arange(*piece.cols.indices(self._stored_cols), dtype=np.int64)
        elif piece.cols is not None:
            fits = fits and piece.cols.min() >= 0 and piece.cols.max() < self._stored_cols
            self._cols = piece.cols
        if not fits:
            raise TensorError(tensor.name, f"has the shape {tensor.shape}, which is less than the configuration says")

    @property
    def cols(self) -> int:
        """Inputs per row; 1 for a vector."""
        return self._stored_cols if self._cols is None else len(self._cols)

    @property
    def _stored_cols(self) -> int:
        if self.piece.transposed:
            return self.tensor.shape[-2]
        return self.tensor.shape[-1] if len(self.tensor.shape) > 1 else 1

    @property
    def is_plain(self) -> bool:
        """Whether numbers are unchanged."""
        return not self.piece.transposed and _is_plain(self.piece)

    @property
    def keeps_codes(self) -> bool:
        """Whether quantized rows keep their codes."""
        if not self.tensor.group or self.piece.transposed or self.piece.offset or self.piece.normalized:
            return False
        return self._cols is None or _moves_groups(self._cols, self.tensor.group)

    def read(self, begin: int, end: int) -> F32 | QuantizedMatrix:
        """Rows [begin, end) of the piece."""
        if self.piece.transposed:
            matrix, first = self._cache.get(self.tensor, self.piece.index), self._first
            columns = slice(first + begin, first + end) if self._order is None else self._order[begin:end]
            wanted_cols = matrix if self._cols is None else matrix[self._cols]
            values: F32 | QuantizedMatrix = np.ascontiguousarray(wanted_cols[:, columns].T)
        elif self._order is None:
            values = self.tensor.read(self._first + begin, self._first + end)
        else:
            wanted = self._order[begin:end] + self._first
            least = int(wanted.min())
            values = picked(self.tensor.read(least, int(wanted.max()) + 1), wanted - least)
        if self._cols is not None and not self.piece.transposed:
            values = _with_cols(values if self.keeps_codes else dequantized(values), self._cols)
        if _is_plain(self.piece):
            return values
        if isinstance(values, QuantizedMatrix) and self.keeps_codes:
            return _scaled(values, self.piece.scale)
        if self.piece.normalized:
            values = _normalized(dequantized(values))
        return dequantized(values) * np.float32(self.piece.scale) + np.float32(self.piece.offset)


def _assembled(
    name: str,
    tensor: Tensor,
    stored: Mapping[str, SourceTensor],
    used: dict[str, int],
    cache: _LastMatrix,
    where: str,
) -> SourceTensor:
    for piece in tensor.pieces:
        if piece.name not in stored:
            raise SourceError(f"{where}: lacks the tensor {piece.name!r}")
    if tensor.role == "vector":
        return _vector(name, tensor, stored, used, where)
    for piece in tensor.pieces:
        if len(stored[piece.name].shape) < 2:
            raise _misfit(stored[piece.name], tensor)
    parts = [_Part(piece, stored[piece.name], cache) for piece in tensor.pieces]
    for part in parts:
        used[part.tensor.name] = used.get(part.tensor.name, 0) + (part.rows + part.piece.padding) * part.cols
        if part.cols != tensor.shape[1]:
            raise _misfit(part.tensor, tensor)
    if sum(part.rows for part in parts) != tensor.shape[0]:
        raise _misfit(parts[0].tensor, tensor)
    return _joined(name, tensor, parts)


def _joined(name: str, tensor: Tensor, parts: list[_Part]) -> SourceTensor:
    first = parts[0].tensor
    ends = np.cumsum([part.rows for part in parts])
    kinds = {(part.tensor.stored, part.tensor.group, part.tensor.table) for part in parts}
    as_codes = len(kinds) == 1 and all(part.keeps_codes for part in parts)
    scaled = any(part.piece.scale != 1 for part in parts)

    def read(begin: int, end: int) -> F32 | QuantizedMatrix:
        found = []
        for part, stop in zip(parts, ends, strict=True):
            at = int(stop) - part.rows
            if begin < stop and end > at:
                found.append(part.read(max(begin - at, 0), min(end - at, part.rows)))
        if as_codes:
            return stacked([each for each in found if isinstance(each, QuantizedMatrix)])
        return np.concatenate([dequantized(each) for each in found]) if len(found) > 1 else dequantized(found[0])

    return SourceTensor(
        name,
        tensor.shape,
        first.stored if as_codes else _floats_stored(parts),
        first.group if as_codes else 0,
        read,
        table=first.table if as_codes else None,
        label=next((part.tensor.label for part in parts if part.tensor.label), ""),
        rounded_scales=as_codes and (scaled or any(part.tensor.rounded_scales for part in parts)),
    )


def _floats_stored(parts: list[_Part]) -> StoredType:
    """The type that stands for values that are read as floats: the most exact one of several."""
    kinds = {part.tensor.stored for part in parts}
    floats = kinds & FLOATS
    if floats:
        plain = len(kinds) == 1 and all(part.is_plain or part.piece.transposed for part in parts)
        return next(iter(floats)) if plain else "fp32"
    return "other_fine" if kinds & {"other_fine", "int8"} else "other"


def _vector(
    name: str, tensor: Tensor, stored: Mapping[str, SourceTensor], used: dict[str, int], where: str
) -> SourceTensor:
    values = []
    for piece in tensor.pieces:
        source = stored[piece.name]
        if source.stored not in FLOATS:
            raise SourceError(f"{where}: the vector {piece.name!r} is quantized ({source.label or source.stored})")
        whole = dequantized(source.read(0, _rows_of_one(source, None))).reshape(source.shape)
        part = (whole if piece.index is None else whole[piece.index]).reshape(-1)
        part = part if piece.rows is None else part[piece.rows]
        used[piece.name] = used.get(piece.name, 0) + len(part) + piece.padding
        part = np.exp(part) if piece.exponential else part
        values.append(part * np.float32(piece.scale) + np.float32(piece.offset) if not _is_plain(piece) else part)
    joined = np.concatenate(values)
    if joined.shape != tensor.shape:
        raise _misfit(stored[tensor.pieces[0].name], tensor)
    return SourceTensor(name, tensor.shape, stored[tensor.pieces[0].name].stored, 0, lambda b, e: joined[b:e])


def _is_plain(piece: Piece) -> bool:
    return piece.scale == 1 and piece.offset == 0 and not piece.normalized


def _normalized(rows: F32) -> F32:
    """Divides each row by its length; a row of zeros stays."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    normalized: F32 = (rows / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    return normalized


def _misfit(stored: SourceTensor, tensor: Tensor) -> TensorError:
    return TensorError(stored.name, f"has the shape {stored.shape}, the configuration says {tensor.shape}")


def _rows_of_one(tensor: SourceTensor, index: int | None) -> int:
    """Number of rows of a tensor; of all matrices of a stack unless `index` selects one."""
    if len(tensor.shape) == 3:
        return tensor.shape[1] if index is not None else tensor.shape[0] * tensor.shape[1]
    return tensor.shape[0]


def _size(tensor: SourceTensor) -> int:
    return int(np.prod(tensor.shape))


def dequantized(rows: F32 | QuantizedMatrix) -> F32:
    """Dequantizes codes; floats stay."""
    return dequantize(rows) if isinstance(rows, QuantizedMatrix) else rows


def picked(rows: F32 | QuantizedMatrix, wanted: NDArray[np.int64]) -> F32 | QuantizedMatrix:
    """Some rows, by their index."""
    if not isinstance(rows, QuantizedMatrix):
        return rows[wanted]
    minima = None if rows.minima is None else rows.minima[wanted]
    return replace(rows, codes=rows.codes[wanted], scales=rows.scales[wanted], minima=minima)


def _moves_groups(cols: NDArray[np.int64], group: int) -> bool:
    """Whether columns move in whole groups, so that each keeps its scale."""
    if len(cols) % group:
        return False
    groups = cols.reshape(-1, group)
    return bool((groups[:, 0] % group == 0).all() and (np.diff(groups, axis=1) == 1).all())


def _with_cols(rows: F32 | QuantizedMatrix, cols: NDArray[np.int64]) -> F32 | QuantizedMatrix:
    """Reorders columns; codes are kept only if whole groups move."""
    if not isinstance(rows, QuantizedMatrix):
        return np.ascontiguousarray(rows[:, cols])
    groups = cols[:: rows.group] // rows.group
    minima = None if rows.minima is None else rows.minima[:, groups]
    return replace(rows, codes=np.ascontiguousarray(rows.codes[:, cols]), scales=rows.scales[:, groups], minima=minima)


def _scaled(rows: QuantizedMatrix, scale: float) -> QuantizedMatrix:
    with np.errstate(over="ignore"):  # the conversion refuses an infinite scale
        scales = (rows.scales.astype(np.float32) * np.float32(scale)).astype(np.float16)
        minima = (
            None if rows.minima is None else (rows.minima.astype(np.float32) * np.float32(scale)).astype(np.float16)
        )
    return replace(rows, scales=scales, minima=minima)


def stacked(parts: list[QuantizedMatrix]) -> QuantizedMatrix:
    """The rows of all parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    minima = [part.minima for part in parts if part.minima is not None]
    return replace(
        parts[0],
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        minima=np.concatenate(minima) if minima else None,
    )
