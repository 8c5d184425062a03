"""contract/packed_matrix.h in NumPy, written from its text alone: what the native packer is held to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]


def _pad_rows(values: NDArray[Any]) -> NDArray[Any]:
    padding = [(0, -len(values) % 32)] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, padding)


def _halves(values: NDArray[np.float16]) -> U8:
    """[rows, blocks] -> [tiles, blocks, 64] bytes."""
    padded = _pad_rows(values).reshape(-1, 32, values.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(padded).view(np.uint8)


def pack_int4(codes: U8, scales: NDArray[np.float16], minima: NDArray[np.float16] | None = None) -> U8:
    blocks = scales.shape[1]
    group = codes.shape[1] // blocks
    q = _pad_rows(codes).reshape(-1, 2, 16, blocks, group // 8, 2, 4)  # tile, c, lane, block, kb, half, i
    packed = q[..., 0, :] | q[..., 1, :] << 4
    packed = packed.transpose(0, 3, 4, 1, 2, 5).reshape(len(q), blocks, group * 16)
    parts = [packed, _halves(scales)] + ([] if minima is None else [_halves(minima)])
    return np.concatenate(parts, axis=2).reshape(len(q), -1)


def pack_int8(codes: U8, scales: NDArray[np.float16]) -> U8:
    blocks = scales.shape[1]
    group = codes.shape[1] // blocks
    u = _pad_rows(codes).reshape(-1, 2, 16, blocks, group // 4, 4)  # tile, c, lane, block, kb, i
    packed = u.transpose(0, 3, 4, 1, 2, 5).reshape(len(u), blocks, group * 32)
    return np.concatenate([packed, _halves(scales)], axis=2).reshape(len(u), -1)


def pack_float(values: NDArray[np.float32], weight_type: str) -> U8:
    padded = _pad_rows(values).reshape(-1, 32, values.shape[1])
    if weight_type == "fp32":
        return np.ascontiguousarray(padded.transpose(0, 2, 1)).view(np.uint8).reshape(len(padded), -1)
    if weight_type == "fp16":
        halves = padded.astype(np.float16).transpose(0, 2, 1)
        return np.ascontiguousarray(halves).view(np.uint8).reshape(len(padded), -1)
    bits = padded.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    pairs = rounded.reshape(len(padded), 32, -1, 2).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(pairs).view(np.uint8).reshape(len(padded), -1)
