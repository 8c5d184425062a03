"""Decodes the bytes of ggml's tensor types to codes or fp32 values. Sources: ggml-common.h and ggml-quants.c.

Does not know files, names or the order of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from quant.codes import mxfp4
from quant.codes.bf16 import bf16_to_fp32
from quant.codes.matrix import F16, F32, U8, QuantizedMatrix
from quant.sources.source import StoredType

IQ4_TABLE: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of IQ4_NL's and IQ4_XS's codes (ggml's kvalues_iq4nl)."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a ggml type is read: `decode` converts bytes [rows, row_bytes] to codes or fp32 [rows, cols]."""

    stored: StoredType
    decode: Callable[[U8], F32 | QuantizedMatrix]
    group: int = 0
    table: tuple[int, ...] | None = None
    rounded_scales: bool = False


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

    llama.cpp uses it for the head of its Q4_0 files, and for some matrices of its Q4_K files.
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


def _decode_iq4_nl(raw: U8) -> QuantizedMatrix:
    """Blocks of 32 as in Q4_0, whose codes index a table: our lut4 with that table."""
    blocks = raw.reshape(len(raw), -1, 18)
    return QuantizedMatrix("lut4", 32, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]), table=IQ4_TABLE)


def _decode_iq4_xs(raw: U8) -> QuantizedMatrix:
    """Superblocks of 256: fp16 scale, eight 6-bit scales (high bits, low halves), 128 bytes of codes as in IQ4_NL.

    A block's scale is the product of the two, which takes 17 bits: it is rounded to fp16.
    """
    blocks = raw.reshape(len(raw), -1, 136)
    high = _halves(blocks[..., 2:4]).view(np.uint16)[..., None] >> np.arange(0, 16, 2, dtype=np.uint16)
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8)).reshape(*blocks.shape[:2], 8) & np.uint8(15)
    steps = (low | ((high.astype(np.uint8) & np.uint8(3)) << np.uint8(4))).astype(np.int8) - np.int8(32)
    scales = _rounded(_halves(blocks[..., :2]).astype(np.float32)[..., None] * steps.astype(np.float32))
    codes = _nibbles(blocks[..., 8:].reshape(len(raw), -1, 16))
    return QuantizedMatrix("lut4", 32, codes, scales, table=IQ4_TABLE)


def _decode_mxfp4(raw: U8) -> QuantizedMatrix:
    """Blocks of 32: a biased exponent, 16 bytes as in Q4_0."""
    blocks = raw.reshape(len(raw), -1, 17)
    return mxfp4.mxfp4_matrix("MXFP4", _nibbles(blocks[..., 1:]), np.ascontiguousarray(blocks[..., 0]))


def _decode_q4_k(raw: U8) -> QuantizedMatrix:
    """Superblocks of 256: fp16 scale, fp16 minimum, eight 6-bit scales and minima, 128 bytes of codes.

    Sixty-four values share 32 bytes, the first 32 in the low halves. Scale and minimum of a block are products that
    take 17 bits: they are rounded to fp16.
    """
    blocks = raw.reshape(len(raw), -1, 144)
    scales, minima = _k_scales(blocks)
    codes = _nibbles(blocks[..., 16:].reshape(len(raw), -1, 32))
    return QuantizedMatrix("asym_int4", 32, codes, _rounded(scales), _rounded(minima))


def _decode_q5_k(raw: U8) -> F32:
    """As Q4_K, with 32 bytes before the codes that hold the fifth bits, one bit a block of 32."""
    blocks = raw.reshape(len(raw), -1, 176)
    scales, minima = _k_scales(blocks)
    low = _nibbles(blocks[..., 48:].reshape(len(raw), -1, 32)).reshape(*blocks.shape[:2], 8, 32)
    high = (blocks[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    codes = (low | (high << np.uint8(4))).reshape(len(raw), -1, 32).astype(np.float32)
    return (scales[..., None] * codes + minima[..., None]).reshape(len(raw), -1)


def _k_scales(blocks: U8) -> tuple[F32, F32]:
    """Scales and (negative) minima [rows, blocks of 32] of Q4_K and Q5_K.

    Of twelve bytes, four hold the first four scales, four the first four minima (six bits each); the last four hold the
    other scales' and minima's low halves, whose two high bits are the high bits of the first eight bytes.
    """
    first, second, third = (blocks[..., begin : begin + 4] for begin in (4, 8, 12))
    high = np.uint8(0x30)
    scales = np.concatenate([first & np.uint8(63), third & np.uint8(15) | first >> np.uint8(2) & high], -1)
    minima = np.concatenate([second & np.uint8(63), third >> np.uint8(4) | second >> np.uint8(2) & high], -1)
    d, dmin = (_halves(blocks[..., at : at + 2]).astype(np.float32)[..., None] for at in (0, 2))
    rows = len(blocks)
    return (d * scales.astype(np.float32)).reshape(rows, -1), (-dmin * minima.astype(np.float32)).reshape(rows, -1)


def _decode_q5_0(raw: U8) -> F32:
    """Blocks of 32: fp16 scale, 32 fifth bits, 16 bytes as in Q4_0; the zero is at 16."""
    blocks = raw.reshape(len(raw), -1, 22)
    codes = _five_bits(blocks[..., 2:]) - np.float32(16)
    return (codes * _halves(blocks[..., :2]).astype(np.float32)[..., None]).reshape(len(raw), -1)


def _decode_q5_1(raw: U8) -> F32:
    """Blocks of 32: fp16 scale, fp16 minimum, 32 fifth bits, 16 bytes as in Q4_0."""
    blocks = raw.reshape(len(raw), -1, 24)
    scales, minima = (_halves(blocks[..., at : at + 2]).astype(np.float32)[..., None] for at in (0, 2))
    return (_five_bits(blocks[..., 4:]) * scales + minima).reshape(len(raw), -1)


def _five_bits(packed: U8) -> F32:
    low = np.concatenate([packed[..., 4:] & np.uint8(15), packed[..., 4:] >> np.uint8(4)], axis=-1)
    high = np.unpackbits(np.ascontiguousarray(packed[..., :4]), axis=-1, bitorder="little")
    codes: U8 = low | (high << np.uint8(4))
    return codes.astype(np.float32)


def _decode_q3_k(raw: U8) -> F32:
    """Superblocks of 256: 32 bytes of third bits, 64 of two bits, sixteen 6-bit scales in 12 bytes, their fp16 scale.

    A third bit that is not set takes four off. The scales' low halves come first, then their high pairs of bits.
    """
    blocks = raw.reshape(len(raw), -1, 110)
    shape = blocks.shape[:2]
    two = _bit_pairs(blocks[..., 32:96])
    third = (blocks[..., :32][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    codes = two.reshape(*shape, 8, 32).astype(np.float32) - np.float32(4) * (third ^ np.uint8(1)).astype(np.float32)
    low = (blocks[..., 96:104][..., None, :] >> np.array([[0], [4]], np.uint8)).reshape(*shape, 16) & np.uint8(15)
    high = _bit_pairs_of(blocks[..., 104:108]).reshape(*shape, 16)
    steps = (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)
    scales = _halves(blocks[..., 108:]).astype(np.float32)[..., None] * steps
    values: F32 = codes.reshape(*shape, 16, 16) * scales[..., None]
    return values.reshape(len(raw), -1)


def _decode_q2_k(raw: U8) -> F32:
    """Superblocks of 256: sixteen bytes of 4-bit scales and minima, 64 of two bits, the fp16 scales of both."""
    blocks = raw.reshape(len(raw), -1, 84)
    codes = _bit_pairs(blocks[..., 16:80]).reshape(*blocks.shape[:2], 16, 16).astype(np.float32)
    d, dmin = (_halves(blocks[..., at : at + 2]).astype(np.float32)[..., None] for at in (80, 82))
    scales = d * (blocks[..., :16] & np.uint8(15)).astype(np.float32)
    minima = dmin * (blocks[..., :16] >> np.uint8(4)).astype(np.float32)
    return (codes * scales[..., None] - minima[..., None]).reshape(len(raw), -1)


def _bit_pairs(packed: U8) -> U8:
    """64 bytes -> 256 values: each half's lowest pairs first."""
    return _bit_pairs_of(packed.reshape(*packed.shape[:-1], 2, 32)).reshape(*packed.shape[:-1], 256)


def _bit_pairs_of(packed: U8) -> U8:
    """[..., n] bytes -> [..., 4, n]."""
    return (packed[..., None, :] >> np.array([[0], [2], [4], [6]], np.uint8)) & np.uint8(3)


def _rounded(scales: F32) -> F16:
    with np.errstate(over="ignore"):  # the conversion refuses an infinite scale
        return scales.reshape(len(scales), -1).astype(np.float16)


def _nibbles(packed: U8) -> U8:
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(len(packed), -1)


def _halves(raw: U8) -> F16:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0]


BLOCK_TYPES: Final[dict[str, BlockType]] = {
    "F32": BlockType("fp32", lambda raw: raw.view(np.float32)),
    "F16": BlockType("fp16", lambda raw: raw.view(np.float16).astype(np.float32)),
    "BF16": BlockType("bf16", lambda raw: bf16_to_fp32(raw.view(np.uint16))),
    "Q4_0": BlockType("sym_int4", _decode_q4_0, 32),
    "Q4_1": BlockType("asym_int4", _decode_q4_1, 32),
    "Q8_0": BlockType("int8", _decode_q8_0, 32),
    "IQ4_NL": BlockType("lut4", _decode_iq4_nl, 32, IQ4_TABLE),
    "IQ4_XS": BlockType("lut4", _decode_iq4_xs, 32, IQ4_TABLE, rounded_scales=True),
    "MXFP4": BlockType("lut4", _decode_mxfp4, mxfp4.GROUP, mxfp4.TABLE),
    "Q4_K": BlockType("asym_int4", _decode_q4_k, 32, rounded_scales=True),
    "Q5_0": BlockType("other_fine", _decode_q5_0),
    "Q5_1": BlockType("other_fine", _decode_q5_1),
    "Q5_K": BlockType("other_fine", _decode_q5_k),
    "Q6_K": BlockType("other_fine", _decode_q6_k),
    "Q3_K": BlockType("other", _decode_q3_k),
    "Q2_K": BlockType("other", _decode_q2_k),
}
"""The supported tensor types, by ggml's names."""
