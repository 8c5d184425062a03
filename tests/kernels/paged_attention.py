"""Keys and values in poisoned, shuffled pages, and attention over them in float64: what attention's tests share."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

ROUNDING = 2.0**-24
"""Relative error of one rounding to fp32."""
BF16_ROUNDING = 2.0**-9
PARTITION_TOKENS = 512
KV_TYPES = ("fp32", "bf16", "int16", "int8")
BYTES_PER_VALUE = {"fp32": 4, "bf16": 2, "int16": 2, "int8": 1}
LARGEST_CODE = {"int16": 4079, "int8": 127}
LARGEST_FIXED = 32767
"""Of the int16 that queries and weights become over pages of integers, for int8 up to a head_dim of 512."""
LARGEST_SUM = 520_192
"""Over int16 pages, of all such codes of a row."""


def block_bytes(kv_type: str, head_dim: int) -> int:
    """One page of one (layer, kv head); integers have two bf16 scales a token."""
    scales = 4 * _native.PAGE_TOKENS if kv_type in LARGEST_CODE else 0
    return 2 * head_dim * _native.PAGE_TOKENS * BYTES_PER_VALUE[kv_type] + scales


def integer_codes(values: F32, kv_type: str) -> tuple[F32, F32]:
    """Codes [tokens, head_dim] and scales [tokens, 1] that pages of integers keep of [tokens, head_dim]."""
    scales = np.abs(values).max(-1, keepdims=True) / np.float32(LARGEST_CODE[kv_type])
    scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    return np.rint(values * (np.float32(1) / scales)), scales


def rounded(values: F32, kv_type: str) -> F32:
    """The values as a page of this type keeps them."""
    if kv_type in LARGEST_CODE:
        codes, scales = integer_codes(values, kv_type)
        return codes * scales
    return values if kv_type == "fp32" else values.astype(ml_dtypes.bfloat16).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a model may do beside softmax(scale q k) v: contract/attention.h's AttentionTask."""

    window: int = 0
    softcap: float = 0.0
    slopes: F32 | None = None  # [group_heads]
    sinks: F32 | None = None

    def seen(self, position: int) -> range:
        """The keys that a query at this position sees."""
        return range(max(0, position + 1 - self.window) if self.window else 0, position + 1)


PLAIN = Rules()


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """One sequence's keys and values for one kv head; every byte of a page that no token wrote reads as NaN."""

    keys: F32  # [tokens, head_dim]
    values: F32
    kv_type: str
    pages: NDArray[np.uint8]
    page_table: NDArray[np.int32]

    def attend(
        self,
        queries: F32,
        context_before: int,
        scale: float,
        tier: str,
        *,
        by_partitions: bool = False,
        bf16: bool = False,
        rules: Rules = PLAIN,
    ) -> F32:
        return testing.attention(
            queries,
            self.pages,
            self.page_table,
            self.kv_type,
            context_before,
            scale,
            tier,
            by_partitions=by_partitions,
            bf16=bf16,
            window=rules.window,
            softcap=rules.softcap,
            slopes=rules.slopes,
            sinks=rules.sinks,
        )


def make_sequence(
    rng: np.random.Generator, tokens: int, head_dim: int, kv_type: str, tier: str = "scalar"
) -> PagedSequence:
    needed = -(-tokens // _native.PAGE_TOKENS)
    pages = np.full((needed + 2, block_bytes(kv_type, head_dim)), 0xFF, np.uint8)
    page_table = rng.permutation(needed + 2)[:needed].astype(np.int32)
    keys = rng.standard_normal((tokens, head_dim), np.float32)
    values = rng.standard_normal((tokens, head_dim), np.float32)
    testing.write_kv(pages, page_table, kv_type, 0, keys, values, tier)
    return PagedSequence(keys, values, kv_type, pages, page_table)


def exponential_error(kv_type: str, *, bf16: bool) -> float:
    """The largest relative error of 2^x, as kernels/simd/numbers.h has it."""
    if bf16:
        return 1.1e-4
    return 3e-6 if kv_type in LARGEST_CODE else 2 * ROUNDING


def half_step(magnitudes: F64, kv_type: str) -> F64:
    """Of the fixed point of each row of magnitudes [rows, n]."""
    steps = magnitudes.max(-1) / LARGEST_FIXED
    if kv_type == "int16":
        steps = np.maximum(steps, magnitudes.sum(-1) / LARGEST_SUM)
    return np.asarray(steps / 2)


def modified(scores: F64, positions: F64, rules: Rules) -> tuple[F64, F64]:
    """Scores [group_heads, keys] in units of log2 under soft cap and ALiBi, and by how much fp32 is off, by head.

    positions: of the keys, as seen from the query. With u = 2^-24, a cap is off by 15 u (tests/kernels/test_scaled.py),
    and here by 3 more, as log2(e), the cap's product with it and the inverse of that are rounded. A slope times log2(e)
    is off by 2 u; the sum with the score is rounded once.
    """
    error = np.zeros(len(scores))
    if rules.softcap:
        cap = rules.softcap * np.log2(np.e)
        scores = cap * np.tanh(scores / cap)
        error += 18 * ROUNDING * np.abs(scores).max(-1)
    if rules.slopes is not None:
        added = rules.slopes[:, None] * np.log2(np.e) * positions
        scores = scores + added
        error += ROUNDING * (2 * np.abs(added) + np.abs(scores)).max(-1)
    return scores, error


def reference(
    sequence: PagedSequence,
    queries: F32,
    context_before: int,
    scale: float,
    *,
    bf16: bool = False,
    rules: Rules = PLAIN,
) -> tuple[F64, F64]:
    """Attention in float64, and how far the kernels may be from it: both [query_tokens, group_heads, head_dim].

    With u = 2^-24, in units of log2: a score is a chain of head_dim fmas on a query rounded twice, so it is off by at
    most (head_dim + 3) u sum|q k|. A weight 2^(s - m) inherits that twice (s and m) plus the rounding of s - m, times
    ln 2, and the error of the exponential, which has fewer terms where its results are rounded. Sums of at most 512
    weights, and of weights times values, add 512 u each, and each of the partitions merged rounds 8 times more.
    Numerator and denominator both carry it: twice, relative to sum_t w_t |v_t|. Weights below 2^-125 (of
    integers 2^-100) count as 0, with bf16 products those below 2^-100 as that, which is beyond notice.

    Over pages of integers a query is off by half a step per element, and so is a weight times its value's scale: a
    step is the largest of them / 32767, but over int16 pages no less than the sum of their magnitudes / 520192. With
    bf16 products there is no fixed point, but queries and weights are off by 2^-9 of themselves.

    Soft cap and ALiBi add what modified() says; the cap makes no error larger. A sink is one more key of value 0, in a
    partition of its own, whose score is rounded twice.
    """
    keys, values = rounded(sequence.keys, sequence.kv_type), rounded(sequence.values, sequence.kv_type)
    query_tokens, _, head_dim = queries.shape
    outputs, bounds = [], []
    for i in range(query_tokens):
        seen = rules.seen(context_before + i)
        k, v = keys[seen.start : seen.stop].astype(np.float64), values[seen.start : seen.stop].astype(np.float64)
        q = queries[i].astype(np.float64) * scale * np.log2(np.e)
        positions = np.arange(1 - len(seen), 1, dtype=np.float64)
        scores, score_error = modified(q @ k.T, positions, rules)
        if rules.sinks is not None:
            sinks = rules.sinks.astype(np.float64) * np.log2(np.e)
            scores = np.concatenate([scores, sinks[:, None]], -1)
            score_error += 2 * ROUNDING * np.abs(sinks)
        spread = scores.max(-1, keepdims=True) - scores
        weights = np.exp2(-spread)
        weights /= weights.sum(-1, keepdims=True)
        weights = weights[:, : len(seen)]
        outputs.append(weights @ v)
        score_error += (head_dim + 3) * ROUNDING * (np.abs(q) @ np.abs(k).T).max(-1)
        fixed_error = np.zeros((len(q), head_dim))
        if bf16:
            score_error += BF16_ROUNDING * (np.abs(q) @ np.abs(k).T).max(-1)
            fixed_error = BF16_ROUNDING * (weights @ np.abs(v))
        elif sequence.kv_type in LARGEST_CODE:
            score_error += half_step(np.abs(q), sequence.kv_type) * np.abs(k).sum(-1).max()
            codes, scales = integer_codes(sequence.values[seen.start : seen.stop], sequence.kv_type)
            fixed_error = half_step(weights * scales[:, 0], sequence.kv_type)[:, None] * np.abs(codes).sum(0)
        weight_error = np.log(2) * (2 * score_error + ROUNDING * spread.max(-1))
        weight_error += exponential_error(sequence.kv_type, bf16=bf16)
        partitions = seen.stop // PARTITION_TOKENS - seen.start // PARTITION_TOKENS + 1 + (rules.sinks is not None)
        sum_error = (min(len(seen), PARTITION_TOKENS) + 8 * partitions) * ROUNDING
        bounds.append(2 * (weight_error + sum_error)[:, None] * (weights @ np.abs(v)) + 1.01 * fixed_error)
    return np.stack(outputs), np.stack(bounds)
