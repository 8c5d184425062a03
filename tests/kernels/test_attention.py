"""Paged attention: against float64, tiers bit for bit, and rows that do not depend on how the work is cut."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from kernels import _native
from kernels._native import testing
from tests.kernels.paged_attention import (
    BYTES_PER_VALUE,
    KV_TYPES,
    LARGEST_CODE,
    ROUNDING,
    PagedSequence,
    block_bytes,
    exponential_error,
    integer_codes,
    make_sequence,
    reference,
    rounded,
)
from tests.sizes import some

TIERS = _native.available_tiers()
VECTOR_TIERS = TIERS[1:]
CONTEXTS = (0, 1, 31, 32, 33, 511, 512, 513, 1100)
GROUP_HEADS = (1, 3, 4, 8)
HEAD_DIMS = (16, 64, 80, 128)


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.int32)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize(("head_dim", "group_heads"), some(HEAD_DIMS, GROUP_HEADS))
def test_every_tier_on_ragged_contexts(kv_type: str, head_dim: int, group_heads: int) -> None:
    rng = np.random.default_rng(head_dim * 10 + group_heads)
    scale = 1 / head_dim**0.5
    for context, query_tokens in zip(CONTEXTS, itertools.cycle((1, 70, 5, 2, 35, 3, 1, 4, 7)), strict=False):
        sequence = make_sequence(rng, context + query_tokens, head_dim, kv_type)
        queries = rng.standard_normal((query_tokens, group_heads, head_dim), np.float32)
        scalar = sequence.attend(queries, context, scale, "scalar")
        expected, bound = reference(sequence, queries, context, scale)
        assert (np.abs(scalar - expected) <= bound).all()
        assert bound.max() < 0.05  # or it would bound nothing
        for tier in VECTOR_TIERS:
            assert np.array_equal(bits(sequence.attend(queries, context, scale, tier)), bits(scalar))
        for tier in TIERS:
            merged = sequence.attend(queries, context, scale, tier, by_partitions=True)
            assert np.array_equal(bits(merged), bits(scalar))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize(("context", "group_heads", "head_dim"), [(0, 3, 16), (480, 1, 16), (33, 8, 80)])
def test_rows_do_not_depend_on_the_chunk(
    tier: str, kv_type: str, context: int, group_heads: int, head_dim: int
) -> None:
    rng = np.random.default_rng(7)
    sequence = make_sequence(rng, context + 70, head_dim, kv_type)
    queries = rng.standard_normal((70, group_heads, head_dim), np.float32)
    whole = sequence.attend(queries, context, 0.3, tier)
    sizes = range(1, 71) if tier != "scalar" else (1, 7, 69)
    for size in sizes:
        chunks = [sequence.attend(queries[i : i + size], context + i, 0.3, tier) for i in range(0, 70, size)]
        assert np.array_equal(bits(np.concatenate(chunks)), bits(whole)), size


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", ["bf16", "int16", "int8"])
def test_heads_do_not_depend_on_their_group(tier: str, kv_type: str) -> None:
    rng = np.random.default_rng(8)
    sequence = make_sequence(rng, 600, 64, kv_type)
    queries = rng.standard_normal((20, 8, 64), np.float32)
    whole = sequence.attend(queries, 580, 0.125, tier)
    for head in range(8):
        alone = sequence.attend(np.ascontiguousarray(queries[:, head : head + 1]), 580, 0.125, tier)
        assert np.array_equal(bits(alone[:, 0]), bits(whole[:, head]))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_later_tokens_are_not_seen(tier: str, kv_type: str) -> None:
    rng = np.random.default_rng(9)
    sequence = make_sequence(rng, 600, 16, kv_type)
    queries = rng.standard_normal((40, 2, 16), np.float32)
    before = sequence.attend(queries, 500, 0.25, tier)
    infinite = np.full((60, 16), np.inf, np.float32)
    testing.write_kv(sequence.pages, sequence.page_table, kv_type, 540, infinite, -infinite, tier)
    after = sequence.attend(queries, 500, 0.25, tier)
    assert np.isfinite(before).all()
    assert np.array_equal(bits(before), bits(after))


@pytest.mark.parametrize("tier", TIERS)
def test_a_future_infinity_in_the_same_tile_stays_out_of_earlier_rows(tier: str) -> None:
    rng = np.random.default_rng(10)
    sequence = make_sequence(rng, 40, 16, "fp32")
    queries = rng.standard_normal((8, 1, 16), np.float32)
    before = sequence.attend(queries, 32, 0.25, tier)
    infinite = np.full((1, 16), np.inf, np.float32)
    testing.write_kv(sequence.pages, sequence.page_table, "fp32", 36, infinite, infinite, tier)
    after = sequence.attend(queries, 32, 0.25, tier)
    assert np.array_equal(bits(before[:4]), bits(after[:4]))
    assert not np.isfinite(after[4:]).any()


@pytest.mark.parametrize("tier", TIERS)
def test_one_key_gives_its_value(tier: str) -> None:
    rng = np.random.default_rng(11)
    sequence = make_sequence(rng, 1, 64, "fp32")
    queries = rng.standard_normal((1, 3, 64), np.float32) * 100
    assert np.array_equal(sequence.attend(queries, 0, 1.0, tier)[0], np.broadcast_to(sequence.values[0], (3, 64)))


@pytest.mark.parametrize("tier", TIERS)
def test_far_scores_neither_overflow_nor_vanish(tier: str) -> None:
    rng = np.random.default_rng(12)
    sequence = make_sequence(rng, 700, 16, "fp32")
    queries = rng.standard_normal((3, 4, 16), np.float32) * 1000
    output = sequence.attend(queries, 697, 1.0, tier)
    best = np.argmax(np.einsum("ihd,td->iht", queries.astype(np.float64), sequence.keys)[0], -1)
    assert np.isfinite(output).all()
    assert np.allclose(output[0], sequence.values[best], atol=1e-5)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", ["fp32", "bf16"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_written_bytes(tier: str, kv_type: str, head_dim: int) -> None:
    rng = np.random.default_rng(13)
    tokens, page = 70, _native.PAGE_TOKENS
    sequence = make_sequence(rng, tokens, head_dim, kv_type, tier)
    element = np.float32 if kv_type == "fp32" else ml_dtypes.bfloat16
    half = head_dim * page * BYTES_PER_VALUE[kv_type]
    for token in range(tokens):
        block = sequence.pages[sequence.page_table[token // page]]
        key_half, value_half = block[:half].view(element), block[half:].view(element)
        if kv_type == "fp32":
            key = key_half.reshape(head_dim, page)[:, token % page]
        else:
            key = key_half.reshape(head_dim // 2, page, 2)[:, token % page].reshape(-1)
        assert np.array_equal(key, sequence.keys[token].astype(element))
        assert np.array_equal(value_half.reshape(page, head_dim)[token % page], sequence.values[token].astype(element))
    unwritten = sequence.pages[sequence.page_table[-1]][half:].view(element).reshape(page, head_dim)
    assert np.isnan(unwritten[tokens % page :].astype(np.float32)).all()


@pytest.mark.parametrize("tier", TIERS)
def test_bf16_rounds_to_nearest_even_and_keeps_what_is_not_finite(tier: str) -> None:
    finite = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x3F7FFFFF, 0x00018000, 0x477FE000, 0x7F7FFFFF]
    other = [0x00000001, 0x80000000, 0x00008000, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00001, 0xFFFFFFFF]
    patterns = np.array([*finite, *other], np.uint32)
    keys = patterns.view(np.float32).reshape(1, 16)
    pages = np.zeros((1, 2 * 16 * _native.PAGE_TOKENS * 2), np.uint8)
    testing.write_kv(pages, np.zeros(1, np.int32), "bf16", 0, keys, keys, tier)
    got = pages[0].view(np.uint16)[16 * _native.PAGE_TOKENS :][:16].view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        expected = keys[0].astype(ml_dtypes.bfloat16)
    assert np.array_equal(np.isnan(got), np.isnan(keys[0]))
    number = ~np.isnan(keys[0])
    assert np.array_equal(got.view(np.uint16)[number], expected.view(np.uint16)[number])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("kv_type", "code"), [("int16", np.int16), ("int8", np.int8)])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_written_integers(tier: str, kv_type: str, code: type, head_dim: int) -> None:
    rng = np.random.default_rng(15)
    tokens, page, half = 70, _native.PAGE_TOKENS, head_dim * _native.PAGE_TOKENS * BYTES_PER_VALUE[kv_type]
    sequence = make_sequence(rng, tokens, head_dim, kv_type, tier)
    key_codes, key_scales = integer_codes(sequence.keys, kv_type)
    value_codes, value_scales = integer_codes(sequence.values, kv_type)
    assert LARGEST_CODE[kv_type] <= np.abs(key_codes).max() <= {"int16": 4095, "int8": 127}[kv_type]
    for token in range(tokens):
        block = sequence.pages[sequence.page_table[token // page]]
        slot = token % page
        key = block[:half].view(code).reshape(head_dim // 2, page, 2)[:, slot].reshape(-1)
        value = block[half : 2 * half].view(code).reshape(page // 2, head_dim, 2)[slot // 2, :, slot % 2]
        scales = block[2 * half :].view(ml_dtypes.bfloat16).reshape(2, page)[:, slot].astype(np.float32)
        assert np.array_equal(key, key_codes[token])
        assert np.array_equal(value, value_codes[token])
        assert scales.tolist() == [key_scales[token, 0], value_scales[token, 0]]
    unwritten = sequence.pages[sequence.page_table[-1]][2 * half :].view(ml_dtypes.bfloat16).reshape(2, page)
    assert np.isnan(unwritten[:, tokens % page :].astype(np.float32)).all()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("kv_type", "code"), [("int16", np.int16), ("int8", np.int8)])
def test_integers_keep_zero_and_tiny_and_mark_what_is_not_finite(tier: str, kv_type: str, code: type) -> None:
    rows = np.ones((5, 16), np.float32)
    rows[0] = 0
    rows[1] = 1e-38
    rows[2, 3], rows[3, 4], rows[4, 5] = np.inf, -np.nan, np.float32(3e38)
    largest = LARGEST_CODE[kv_type]
    pages = np.full((1, block_bytes(kv_type, 16)), 0xFF, np.uint8)
    testing.write_kv(pages, np.zeros(1, np.int32), kv_type, 0, rows, rows, tier)
    half = 16 * _native.PAGE_TOKENS * BYTES_PER_VALUE[kv_type]
    scales = pages[0, 2 * half :].view(ml_dtypes.bfloat16).reshape(2, -1)[:, :5].astype(np.float32)
    values: np.ndarray = pages[0, half : 2 * half].view(code).reshape(16, 16, 2)
    assert (scales[:, :2] == 0).all()
    assert np.isnan(scales[:, 2:4]).all()
    assert np.allclose(scales[:, 4], 3e38 / largest, rtol=2**-8)
    assert not values[0].any()
    assert not values[1].any()
    assert abs(values[2, 5, 0] - largest) <= largest * 2**-8
    assert not np.delete(values[2, :, 0], 5).any()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_what_is_not_finite_shows(tier: str, kv_type: str, place: str) -> None:
    """A NaN must not become a plausible answer, even at a key that has next to no weight."""
    rng = np.random.default_rng(16)
    sequence = make_sequence(rng, 600, 32, kv_type)
    queries = rng.standard_normal((4, 3, 32), np.float32)
    if place == "query":
        queries[:, :, 5] = np.nan
    else:
        bad = np.full((1, 32), np.nan, np.float32)
        key, value = (bad, bad * 0 + 1) if place == "key" else (sequence.keys[20:21], bad)
        testing.write_kv(sequence.pages, sequence.page_table, kv_type, 20, key, value, tier)
    for by_partitions, bf16 in itertools.product((False, True), {False, kv_type in ("bf16", "int8")}):
        output = sequence.attend(queries, 596, 4.0, tier, by_partitions=by_partitions, bf16=bf16)
        assert np.isnan(output).all()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("kv_type", "bf16"),
    [("fp32", False), ("bf16", False), ("int16", False), ("int8", False), ("bf16", True), ("int8", True)],
)
def test_weights_are_powers_of_two(tier: str, kv_type: str, bf16: bool) -> None:
    """Two keys, of which the heavier has value 1 and the other 0: what comes out is 1 / (1 + 2^-spread)."""
    head_dim, heads = 32, 128
    keys, queries = np.zeros((2, head_dim), np.float32), np.zeros((1, heads, head_dim), np.float32)
    keys[0, 0] = 1
    queries[0, :, 0] = spreads = np.arange(1, heads + 1) / 64  # exact in bf16
    values = np.stack([np.ones(head_dim), np.zeros(head_dim)]).astype(np.float32)
    pages = np.full((1, block_bytes(kv_type, head_dim)), 0xFF, np.uint8)
    page_table = np.zeros(1, np.int32)
    testing.write_kv(pages, page_table, kv_type, 0, keys, values, tier)
    output = testing.attention(queries, pages, page_table, kv_type, 1, np.log(2), tier, bf16=bf16)[0, :, 0]
    one = rounded(keys[:1], kv_type)[0, 0]
    weights = one / output.astype(np.float64) - 1
    error = np.abs(weights / np.exp2(-spreads * one) - 1)
    # Five units for each of the roundings on the way from the weight to the output and back.
    assert error.max() < exponential_error(kv_type, bf16=bf16) + 5 * 4 * ROUNDING


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", ["int16", "int8"])
@pytest.mark.parametrize(("head_dim", "value"), [(64, 1.0), (1024, 1.0), (1024, 0.50375)])
def test_sums_of_integers_do_not_overflow(tier: str, kv_type: str, head_dim: int, value: float) -> None:
    """Every product at its largest: all weights equal, all elements the same, and a head wider than 512.

    The second value's scale, of int16, is rounded down by nearly half a step of bf16, so that its codes are 4095.
    """
    tokens = 513
    ones = np.full((tokens, head_dim), value, np.float32)
    pages = np.full((17, block_bytes(kv_type, head_dim)), 0xFF, np.uint8)
    page_table = np.arange(17, dtype=np.int32)
    testing.write_kv(pages, page_table, kv_type, 0, ones, ones, tier)
    if kv_type == "int16" and value < 1:
        assert pages[0].view(np.int16)[0] == 4095
    queries = np.ones((1, 1, head_dim), np.float32)
    output = testing.attention(queries, pages, page_table, kv_type, tokens - 1, 1.0, tier)
    assert np.allclose(output, value, rtol=2**-8 if kv_type == "int8" else 2**-10)


@pytest.mark.parametrize(("kv_type", "share"), [("int16", 0.8), ("int8", 0.02)])
def test_attention_to_integers_is_as_exact_as_its_pages(kv_type: str, share: float) -> None:
    """Fixed-point queries and weights add less than what keys and values lose, over int8 pages next to nothing."""
    rng = np.random.default_rng(17)
    sequence = make_sequence(rng, 2000, 64, kv_type)
    exact = PagedSequence(sequence.keys, sequence.values, "fp32", sequence.pages, sequence.page_table)
    queries = rng.standard_normal((1, 8, 64), np.float32)
    output = sequence.attend(queries, 1999, 0.125, "scalar")
    dequantized, _ = reference(sequence, queries, 1999, 0.125)
    truth, _ = reference(exact, queries, 1999, 0.125)
    assert np.linalg.norm(output - dequantized) < share * np.linalg.norm(dequantized - truth)


def test_int16_pages_are_nearer_to_fp32_than_bf16_ones() -> None:
    rng = np.random.default_rng(18)
    queries = rng.standard_normal((1, 8, 64), np.float32)
    errors = {}
    for kv_type in ("int16", "bf16"):
        sequence = make_sequence(np.random.default_rng(19), 2000, 64, kv_type)
        exact = PagedSequence(sequence.keys, sequence.values, "fp32", sequence.pages, sequence.page_table)
        truth, _ = reference(exact, queries, 1999, 0.125)
        errors[kv_type] = np.linalg.norm(sequence.attend(queries, 1999, 0.125, "scalar") - truth)
    assert errors["int16"] < 0.5 * errors["bf16"]


def test_bad_arguments_are_named() -> None:
    rng = np.random.default_rng(14)
    sequence = make_sequence(rng, 40, 16, "fp32")
    queries = np.zeros((1, 1, 16), np.float32)
    with pytest.raises(ValueError, match="kv_type"):
        testing.attention(queries, sequence.pages, sequence.page_table, "fp8", 0, 1.0, "scalar")
    with pytest.raises(ValueError, match="page_table: too short"):
        sequence.attend(queries, 64, 1.0, "scalar")
    with pytest.raises(ValueError, match="pages"):
        testing.attention(queries, sequence.pages, sequence.page_table, "bf16", 0, 1.0, "scalar")
    with pytest.raises(ValueError, match="no such page"):
        testing.attention(queries, sequence.pages, sequence.page_table + 100, "fp32", 0, 1.0, "scalar")
