"""The bytes of ggml's tensor types -> codes as they are, or fp32 values. Source: ggml-common.h and ggml-quants.c.

Does not know files, names or the order of rows.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from quant.matrix import F16, F32, U8, QuantizedMatrix
from quant.sources.file_rows import bf16_to_fp32
from quant.sources.source import StoredType

STORED_TYPES: Final[dict[str, StoredType]] = {
    "F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q6_K": "q6_k",
    "Q4_0": "sym_int4", "Q4_1": "asym_int4", "Q8_0": "int8",
}  # fmt: skip
"""ggml's name of each type that is read -> ours."""


def decode_rows(stored: StoredType, raw: U8) -> F32 | QuantizedMatrix:
    """Rows of bytes [rows, row_bytes] -> codes, for the types of ours that ggml has too, or fp32 [rows, cols]."""
    return _DECODERS[stored](raw)


def _decode_q4_0(raw: U8) -> QuantizedMatrix:
    """Blocks of 32: fp16 scale, 16 bytes; byte i holds value i (low half) and value i + 16 (high half)."""
    blocks = raw.reshape(len(raw), -1, 18)
    return QuantizedMatrix("sym_int4", 32, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]))


def _decode_q4_1(raw: U8) -> QuantizedMatrix:
    """Blocks of 32: fp16 scale, fp16 minimum, 16 bytes as in Q4_0."""
    blocks = raw.reshape(len(raw), -1, 20)
    return QuantizedMatrix(
        "asym_int4", 32, _nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    )


def _decode_q8_0(raw: U8) -> QuantizedMatrix:
    """Blocks of 32: fp16 scale, 32 signed bytes. Flipping the sign bit adds 128."""
    blocks = raw.reshape(len(raw), -1, 34)
    codes = (blocks[..., 2:] ^ np.uint8(0x80)).reshape(len(raw), -1)
    return QuantizedMatrix("int8", 32, codes, _halves(blocks[..., :2]))


def _decode_q6_k(raw: U8) -> F32:
    """Superblocks of 256: 128 bytes of low halves, 64 of high bits, 16 int8 scales, the fp16 scale of these.

    llama.cpp stores the head of its Q4_0 files so; read as floats, since no type of ours is like it.
    """
    blocks = raw.reshape(len(raw), -1, 210)
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64)
    low = (low >> np.array([0, 4], np.uint8).reshape(1, 1, 1, 2, 1)) & np.uint8(15)
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 1, 4, 1)) & np.uint8(3)
    codes = low.reshape(*blocks.shape[:2], 16, 16) | (high.reshape(*blocks.shape[:2], 16, 16) << np.uint8(4))
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    scales *= np.ascontiguousarray(blocks[..., 208:]).view(np.float16).astype(np.float32)
    values = (codes.astype(np.float32) - np.float32(32)) * scales[..., None]
    return values.reshape(len(raw), -1)


def _nibbles(
    packed: U8,
) -> U8:
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(len(packed), -1)


def _halves(
    raw: U8,
) -> F16:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0]


_DECODERS: Final[dict[StoredType, Callable[..., F32 | QuantizedMatrix]]] = {
    "fp32": lambda raw: raw.view(np.float32),
    "fp16": lambda raw: raw.view(np.float16).astype(np.float32),
    "bf16": lambda raw: bf16_to_fp32(raw.view(np.uint16)),
    "q6_k": _decode_q6_k,
    "sym_int4": _decode_q4_0,
    "asym_int4": _decode_q4_1,
    "int8": _decode_q8_0,
}
