"""Windows, soft caps, ALiBi and sinks: against float64, tiers bit for bit, and rows that depend on nothing else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing
from tests.kernels.paged_attention import F32, KV_TYPES, PLAIN, PagedSequence, Rules, make_sequence, reference
from tests.kernels.test_amx import EMULATED
from tests.kernels.test_linear import same_bits
from tests.sizes import some

TIERS = _native.available_tiers()
AMX_TIERS = [name for name in ("amx_int8", EMULATED) if name in {*TIERS, *testing.linear_tiers()}]
KINDS = [*((kv_type, False) for kv_type in KV_TYPES), ("bf16", True), ("int8", True)]
"""Pages, and whether products are of bf16 numbers."""
PAGE = _native.PAGE_TOKENS
WINDOWS = (1, 7, PAGE - 1, PAGE, PAGE + 1, 100, 511, 512, 513, 700, 4096)
"""Shorter than a page, whole pages and partitions, one off, over several partitions, longer than any context."""
CONTEXTS = ((0, 40), (31, 3), (500, 70), (512, 1), (1023, 9), (1100, 34))


def tiers_of(bf16: bool) -> list[str]:
    return ["scalar", *AMX_TIERS] if bf16 else TIERS


def head_rules(heads: int, **others: float) -> Rules:
    slopes = np.exp2(-np.arange(1, heads + 1) * 8 / heads).astype(np.float32)
    return replace(Rules(**others), slopes=slopes, sinks=np.linspace(-2, 3, heads, dtype=np.float32))  # type: ignore[arg-type]


def check(sequence: PagedSequence, queries: F32, context: int, scale: float, rules: Rules, bf16: bool) -> F32:
    """Every tier, whole and by partitions, gives the scalar tier's bits, which are near float64's."""
    scalar = sequence.attend(queries, context, scale, "scalar", bf16=bf16, rules=rules)
    expected, bound = reference(sequence, queries, context, scale, bf16=bf16, rules=rules)
    assert (np.abs(scalar - expected) <= bound).all()
    assert bound.max() < (0.5 if bf16 else 0.1)  # or it would bound nothing
    for tier, by_partitions in itertools.product(tiers_of(bf16), (False, True)):
        output = sequence.attend(queries, context, scale, tier, by_partitions=by_partitions, bf16=bf16, rules=rules)
        assert same_bits(output, scalar), (tier, by_partitions)
    return scalar


@pytest.mark.parametrize(("window", "kind"), some(WINDOWS, KINDS))
def test_windows(window: int, kind: tuple[str, bool]) -> None:
    kv_type, bf16 = kind
    rng = np.random.default_rng(window)
    shapes = itertools.cycle([(1, 64), (3, 96), (8, 32), (4, 128)])
    for (context, query_tokens), (heads, head_dim) in zip(CONTEXTS, shapes, strict=False):
        sequence = make_sequence(rng, context + query_tokens, head_dim, kv_type)
        queries = rng.standard_normal((query_tokens, heads, head_dim), np.float32)
        output = check(sequence, queries, context, head_dim**-0.5, Rules(window=window), bf16)
        plain = sequence.attend(queries, context, head_dim**-0.5, "scalar", bf16=bf16)
        unchanged = (output.view(np.int32) == plain.view(np.int32)).all((1, 2))
        assert unchanged.tolist() == [context + i < window for i in range(query_tokens)]


ALL_RULES = head_rules(3, softcap=3.0, window=75)
SOME_RULES = (
    Rules(softcap=5.0),
    Rules(slopes=np.array([0.5, 0.0, 2.0**-8], np.float32)),
    Rules(sinks=np.array([-4.0, 0.5, 9.0], np.float32)),
    head_rules(3, softcap=20.0),
    head_rules(3, window=530),
)


@pytest.mark.parametrize(("rules", "kind"), [*((ALL_RULES, kind) for kind in KINDS), *some(SOME_RULES, KINDS)])
def test_rules(rules: Rules, kind: tuple[str, bool]) -> None:
    kv_type, bf16 = kind
    rng = np.random.default_rng(20)
    for (context, query_tokens), head_dim in zip(CONTEXTS, itertools.cycle((64, 80, 128, 96, 256)), strict=False):
        if bf16 and head_dim in (80, 256):
            continue
        sequence = make_sequence(rng, context + query_tokens, head_dim, kv_type)
        queries = rng.standard_normal((query_tokens, 3, head_dim), np.float32)
        output = check(sequence, queries, context, head_dim**-0.5, rules, bf16)
        plain = sequence.attend(queries, context, head_dim**-0.5, "scalar", bf16=bf16)
        assert np.abs(output - plain).max() > 0.01, "the rule shows"


@pytest.mark.parametrize(("kv_type", "bf16"), KINDS)
@pytest.mark.parametrize(("window", "place"), some([0, 10, 64, 500], [(0, 3), (480, 1), (1000, 8)]))
def test_rows_do_not_depend_on_the_chunk(kv_type: str, bf16: bool, window: int, place: tuple[int, int]) -> None:
    context, heads = place
    rng = np.random.default_rng(7)
    sequence = make_sequence(rng, context + 70, 32, kv_type)
    queries = rng.standard_normal((70, heads, 32), np.float32)
    rules = head_rules(heads, softcap=10.0, window=window)
    for tier in tiers_of(bf16):
        whole = sequence.attend(queries, context, 0.3, tier, bf16=bf16, rules=rules)
        for size in (69,) if tier == "scalar" else (1, 2, 3, 7, 13, 33, 64):
            parts = [
                sequence.attend(queries[i : i + size], context + i, 0.3, tier, bf16=bf16, rules=rules)
                for i in range(0, 70, size)
            ]
            assert same_bits(np.concatenate(parts), whole), (tier, size)


@pytest.mark.parametrize(("kv_type", "bf16"), KINDS)
def test_heads_do_not_depend_on_their_group(kv_type: str, bf16: bool) -> None:
    rng = np.random.default_rng(8)
    sequence = make_sequence(rng, 600, 64, kv_type)
    queries = rng.standard_normal((20, 8, 64), np.float32)
    rules = head_rules(8, softcap=4.0, window=90)
    assert rules.slopes is not None
    assert rules.sinks is not None
    for tier in tiers_of(bf16):
        whole = sequence.attend(queries, 580, 0.125, tier, bf16=bf16, rules=rules)
        for head in range(8):
            own = replace(rules, slopes=rules.slopes[head : head + 1], sinks=rules.sinks[head : head + 1])
            query = np.ascontiguousarray(queries[:, head : head + 1])
            alone = sequence.attend(query, 580, 0.125, tier, bf16=bf16, rules=own)
            assert same_bits(alone[:, 0], whole[:, head]), (tier, head)


@pytest.mark.parametrize(("kv_type", "bf16"), KINDS)
@pytest.mark.parametrize(("window", "context"), [(5, 600), (64, 1023), (512, 1536), (700, 1300)])
def test_what_the_window_hides_is_not_read(kv_type: str, bf16: bool, window: int, context: int) -> None:
    """Pages before it may be gone, and what the first seen page holds before it may be anything."""
    rng = np.random.default_rng(9)
    sequence = make_sequence(rng, context + 30, 64, kv_type)
    queries = rng.standard_normal((30, 2, 64), np.float32)
    rules = Rules(window=window)
    first = rules.seen(context).start
    poisoned = replace(sequence, pages=sequence.pages.copy(), page_table=sequence.page_table.copy())
    bad = np.full((first, 64), np.inf, np.float32)
    testing.write_kv(poisoned.pages, poisoned.page_table, kv_type, 0, bad, -bad, "scalar")
    poisoned.page_table[: first // PAGE] = -1
    for tier, by_partitions in itertools.product(tiers_of(bf16), (False, True)):
        before = sequence.attend(queries, context, 0.1, tier, by_partitions=by_partitions, bf16=bf16, rules=rules)
        after = poisoned.attend(queries, context, 0.1, tier, by_partitions=by_partitions, bf16=bf16, rules=rules)
        assert np.isfinite(before).all()
        assert same_bits(before, after), (tier, by_partitions)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", ["fp32", "bf16", "int16"])
def test_an_infinity_that_left_the_window_stays_out_of_later_rows(tier: str, kv_type: str) -> None:
    rng = np.random.default_rng(10)
    sequence = make_sequence(rng, 80, 32, kv_type)
    queries = rng.standard_normal((12, 1, 32), np.float32)
    rules = Rules(window=10)
    before = sequence.attend(queries, 60, 0.25, tier, rules=rules)
    infinite = np.full((1, 32), np.inf, np.float32)
    testing.write_kv(sequence.pages, sequence.page_table, kv_type, 55, infinite, infinite, tier)
    after = sequence.attend(queries, 60, 0.25, tier, rules=rules)
    assert np.isnan(after[:5]).all()
    assert same_bits(before[5:], after[5:])


@pytest.mark.parametrize(("kv_type", "bf16"), KINDS)
def test_sinks_at_their_ends(kv_type: str, bf16: bool) -> None:
    """One that is far below all scores changes nothing, one far above takes all the weight."""
    rng = np.random.default_rng(11)
    sequence = make_sequence(rng, 1100, 64, kv_type)
    queries = rng.standard_normal((4, 3, 64), np.float32)
    sinks = np.array([-np.inf, -1000.0, 1000.0], np.float32)
    for tier in tiers_of(bf16):
        plain = sequence.attend(queries, 1096, 0.125, tier, bf16=bf16)
        output = sequence.attend(queries, 1096, 0.125, tier, bf16=bf16, rules=Rules(sinks=sinks))
        assert same_bits(output[:, :2], plain[:, :2])
        assert not output[:, 2].any()


@pytest.mark.parametrize(("kv_type", "bf16"), KINDS)
@pytest.mark.parametrize("place", ["query", "key", "sink", "slope"])
def test_what_is_not_finite_shows(kv_type: str, bf16: bool, place: str) -> None:
    """An infinite score must not become a plausible one under a cap."""
    rng = np.random.default_rng(16)
    sequence = make_sequence(rng, 600, 32, kv_type)
    queries = rng.standard_normal((4, 3, 32), np.float32)
    rules = head_rules(3, softcap=10.0)
    if place == "query":
        queries[:, :, 5] = np.inf
    elif place == "key":
        bad = np.full((1, 32), np.inf, np.float32)
        testing.write_kv(sequence.pages, sequence.page_table, kv_type, 20, bad, np.ones_like(bad), "scalar")
    elif place == "sink":
        rules = replace(rules, sinks=np.full(3, np.nan, np.float32))
    else:
        rules = replace(rules, slopes=np.full(3, np.nan, np.float32))
    for tier, by_partitions in itertools.product(tiers_of(bf16), (False, True)):
        output = sequence.attend(queries, 596, 4.0, tier, by_partitions=by_partitions, bf16=bf16, rules=rules)
        assert np.isnan(output).all(), (tier, by_partitions)


def test_bad_arguments_are_named() -> None:
    sequence = make_sequence(np.random.default_rng(14), 40, 16, "fp32")
    queries = np.zeros((1, 2, 16), np.float32)
    for rules, reason in [
        (Rules(window=-1), "window: negative"),
        (Rules(slopes=np.zeros(3, np.float32)), "slopes: not"),
        (Rules(sinks=np.zeros(1, np.float32)), "sinks: not"),
    ]:
        with pytest.raises(ValueError, match=reason):
            sequence.attend(queries, 0, 1.0, "scalar", rules=rules)
    gone = replace(sequence, page_table=np.array([-1, 1], np.int32))
    with pytest.raises(ValueError, match="no such page"):
        gone.attend(queries, 33, 1.0, "scalar", rules=PLAIN)
