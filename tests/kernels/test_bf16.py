"""Products of bf16 numbers, which prompts, and answers if wanted, are computed with on AMX.

Tiles, the processor's and emulated ones, against the scalar twins bit for bit, and those against float64.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bench.kernel_cases import LinearCase, Weights, code_values, make_weights, matrix_of
from kernels import _native
from kernels._native import testing
from quant.codes.matrix import WeightType
from tests.kernels.paged_attention import block_bytes, make_sequence, reference
from tests.kernels.test_amx import AMX_TIERS
from tests.kernels.test_linear import CANARY, F32, activations, dequantized, same_bits
from tests.kernels.test_model import QWEN3, TIERS, one_by_one, tokens
from tests.kernels.tiny_model import LLAMA, MakeModel, Sequences, random_tensors, write_model, write_random_model
from tests.sizes import some

TYPES = ("sym_int4", "asym_int4", "lut4", "int8")
CUT = 2.0**-7  # of a weight, at most, goes when three bits of it are cut off
ROUNDING = 2.0**-9  # of an activation
INPUT_FACTOR = np.float32(2.0**112 / 32.0625 * (1 + 7 / 16 * 2**-7 * np.log(2)))  # of activations
EVENS_FIRST = np.arange(32).reshape(4, 4, 2).swapaxes(1, 2).ravel()  # of each eight inputs

amx_tiers = pytest.mark.parametrize("tier", AMX_TIERS)


def run(
    case: LinearCase,
    weights: Weights,
    x: F32,
    tier: str,
    y: F32 | None = None,
    **options: Any,
) -> F32:
    y = np.empty((len(x), case.rows), np.float32) if y is None else y
    testing.linear_bf16(matrix_of(case, weights), testing.round_rows(x, "scalar"), y, tier, **options)
    return y


@amx_tiers
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 50])
def test_rounding_activations(rows: int, tier: str) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 163), np.float32)[:, :160]  # further apart than long
    x[0, :3] = 1e-45, -1e-45, 1.00390625 / INPUT_FACTOR
    x[0, 3:10] = 2.08e6, -2.08e6, 2.09e6, -2.09e6, 1e30, -1e30, np.nan  # just small enough, too large, NaN
    expected = testing.round_rows(x, "scalar")
    blocks = -(-rows // 16)
    height = -(-rows // blocks)
    assert expected.shape == (blocks * height, 160)
    values = np.clip(x.astype(np.float64) * INPUT_FACTOR, -3.3895313892515355e38, 3.3895313892515355e38).astype(
        np.float32
    )
    values = values.reshape(rows, 5, 32)[:, :, EVENS_FIRST].reshape(rows, 160)
    padded = np.zeros((blocks * height, 160), np.uint16)
    padded[:rows] = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert (expected.reshape(blocks, 5, height, 32) == padded.reshape(blocks, height, 5, 32).swapaxes(1, 2)).all()
    for block_rows, block_cols in ((1 << 30, 1 << 30), (1, 32), (7, 96), (16, 64)):
        assert (testing.round_rows(x, tier, block_rows, block_cols) == expected).all()


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("weight_type", TYPES)
def test_the_scalar_twin_is_what_bf16_should_give(weight_type: str, group: int) -> None:
    case = LinearCase(weight_type, 50, 12 * group, group)
    weights = make_weights(case, np.random.default_rng(group))
    x = activations(9, case.cols, 32)
    exact_weights, inputs = dequantized(case, weights), x.astype(np.float64)
    result, exact = run(case, weights, x, "scalar"), inputs @ exact_weights.T
    magnitude = np.abs(inputs) @ np.abs(exact_weights).T
    assert (np.abs(result - exact) <= (CUT + ROUNDING + case.cols * 2.0**-24) * magnitude).all()
    # Most of it cancels: what is cut off is made up for on the average, and the rest has either sign.
    assert np.abs(result - exact).mean() < 0.1 * ROUNDING * magnitude.mean()


def test_what_is_cut_off_weights_is_made_up_for() -> None:
    """Weights and activations of all sizes, of one sign: neither too small nor too large on the average."""
    scales = np.repeat(np.exp2(np.linspace(0, 3, 4096)).astype(np.float16)[:, None], 32, axis=1)
    codes = np.full((4096, 1024), 9, np.uint8)
    x = np.exp2(np.linspace(0, 3, 1024)).astype(np.float32)[None]
    y = np.empty((1, 4096), np.float32)
    rounded = testing.round_rows(x, "scalar")
    matrix = _native.PackedMatrix(_native.pack_int4(codes, scales, None), "sym_int4", 4096, 1024, 32)
    testing.linear_bf16(matrix, rounded, y, "scalar")
    exact = x.sum(dtype=np.float64) * scales[:, 0].astype(np.float64)
    assert abs(y.sum(dtype=np.float64) / exact.sum() - 1) < 2.0**-13
    assert np.abs(y[0] / exact - 1).max() < CUT


@pytest.mark.parametrize("weight_type", TYPES)
@amx_tiers
def test_weights_of_any_size(weight_type: str, tier: str) -> None:
    """Scales and minima that fp16 has only just, or which would leave it in the product, infinite ones and NaN too."""
    case = LinearCase(weight_type, 64, 64, 32)
    weights = make_weights(case, np.random.default_rng(4))
    packed = weights.packed.reshape(2, 2, -1).copy()
    halves = packed[:, :, 1024 if weight_type == "int8" else 512 :].view(np.uint16)
    halves[:] = np.random.default_rng(5).integers(0, 1 << 16, halves.shape)
    x = activations(5, 64, 32)
    sizes = dataclasses.replace(weights, packed=packed.reshape(weights.packed.shape))
    twin = run(case, sizes, x, "scalar")
    assert same_bits(run(case, sizes, x, tier), twin)

    def clamped(lanes: NDArray[np.uint16], limit: float) -> NDArray[np.float64]:
        """What is taken for halves [tile, group, output] of every input [output, input]."""
        magnitude = np.minimum(lanes & 0x7FFF, np.float16(limit).view(np.uint16))
        signed = (magnitude | (lanes & 0x8000)).astype(np.uint16)
        values: NDArray[np.float64] = signed.view(np.float16).astype(np.float64)
        return values.swapaxes(1, 2).reshape(64, 2).repeat(32, axis=1)

    scales = clamped(halves[:, :, :32], {"sym_int4": 255.375, "asym_int4": 63.96875}.get(weight_type, 15.9921875))
    minima = clamped(halves[:, :, 32:], 511.75) if weight_type == "asym_int4" else 0.0
    exact_weights = code_values(weights, weight_type) * scales + minima
    inputs = x.astype(np.float64)
    # fp16 has smaller ones, times 32, not as normal numbers; and the center of an asymmetric group is rounded.
    size = np.abs(exact_weights) + np.abs(8 * scales + minima) * 2.0**-4 + 2.0**-12
    assert (np.abs(twin - inputs @ exact_weights.T) <= 2 * CUT * (np.abs(inputs) @ size.T)).all()


@amx_tiers
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("weight_type", TYPES)
def test_every_number_of_rows_equals_the_scalar_twin(weight_type: str, group: int, tier: str) -> None:
    """One block of rows, two, and many, whole and not; outputs that fill no tile."""
    case = LinearCase(weight_type, 41, 3 * group, group)
    weights = make_weights(case, np.random.default_rng(group))
    rows = (*range(1, 19), 31, 32, 33, 40, 48, 49, 63, 64, 65, 100, 129)
    x = activations(max(rows), case.cols, 32)
    rng = np.random.default_rng(3)
    bias, before = rng.standard_normal(41, np.float32), rng.standard_normal((max(rows), 41), np.float32)
    options: list[dict[str, Any]] = [{}, {"bias": bias}, {"accumulate": True}, {"bias": bias, "accumulate": True}]
    for chosen in options:
        expected = run(case, weights, x, "scalar", before.copy(), **chosen)
        for count in rows:
            again = run(case, weights, x[:count], tier, before[:count].copy(), **chosen)
            assert same_bits(again, expected[:count]), (count, chosen)


@amx_tiers
@pytest.mark.parametrize(
    "case",
    [
        LinearCase("asym_int4", 960, 576, 32),
        LinearCase("asym_int4", 320, 1536, 32),
        LinearCase("sym_int4", 96, 5632, 64),
        LinearCase("lut4", 64, 2048, 128),
        LinearCase("int8", 320, 576, 32),
    ],
    ids=lambda case: case.name,
)
def test_layers_of_models(case: LinearCase, tier: str) -> None:
    """Several tiles of outputs at once, and inputs in several panels."""
    weights = make_weights(case, np.random.default_rng(1))
    x = activations(70, case.cols, 32)
    expected = run(case, weights, x, "scalar")
    for count in (3, 20, 70) if tier == "amx_int8" else (70,):
        assert same_bits(run(case, weights, x[:count], tier), expected[:count])


@amx_tiers
@pytest.mark.parametrize(
    "case",
    [
        LinearCase("asym_int4", 96, 576, 32),
        LinearCase("sym_int4", 64, 2048, 64),
        LinearCase("lut4", 64, 1408, 128),
        LinearCase("int8", 32, 32, 32),
    ],
    ids=lambda case: case.name,
)
def test_gate_and_up_in_one(case: LinearCase, tier: str) -> None:
    """As their products, SiLU and rounding one after the other, in one panel of inputs and in several."""
    rng = np.random.default_rng(6)
    gate, up = make_weights(case, rng), make_weights(case, rng)
    matrices = (matrix_of(case, gate), matrix_of(case, up))
    gate_bias, up_bias = rng.standard_normal((2, case.rows), np.float32)
    for rows in (1, 16, 17, 32, 33, 50, 64, 65, 97, 130, 1040) if tier == "amx_int8" else (20, 33, 65):
        x = activations(rows, case.cols, 32) * np.float32(0.2)
        rounded = testing.round_rows(x, "scalar")
        for biases in ((None, None), (gate_bias, up_bias)):
            options: dict[str, Any] = {"gate_bias": biases[0], "up_bias": biases[1]}
            gates, ups = (
                run(case, weights, x, tier, bias=bias) for weights, bias in zip((gate, up), biases, strict=True)
            )
            inner = np.zeros((rows, case.rows + 96), np.float32)
            inner[:, 32 : 32 + case.rows] = testing.activate("silu", gates, ups, "scalar")
            expected = testing.round_rows(inner, "scalar")
            for each in (tier, "scalar") if rows in (17, 33) else (tier,):
                options |= {"col": 32, "out_cols": case.rows + 96}
                result = testing.gate_up_bf16(*matrices, rounded, rows, each, **options)
                assert (result == expected).all(), (rows, each)


@amx_tiers
@pytest.mark.parametrize(("rows", "batch"), some([1, 16, 31, 33, 100], [1, 9, 17, 40]))
def test_nothing_is_written_beyond_the_outputs(batch: int, rows: int, tier: str) -> None:
    case = LinearCase("sym_int4", rows, 64, 64)
    weights = make_weights(case, np.random.default_rng(2))
    x = activations(batch, 64, 64)
    for options in ({}, {"tile_begin": -(-rows // 32) - 1}):
        around = np.full((batch + 2, rows + 40), CANARY, np.float32)
        inside = around[1:-1, 3 : 3 + rows]
        run(case, weights, x, tier, inside, **options)
        written = inside[:, 32 * options.get("tile_begin", 0) :]
        assert not (written == CANARY).any()
        written[:] = CANARY
        assert (around == CANARY).all()


def test_other_weights_are_refused() -> None:
    case = LinearCase("bf16", 32, 64, 0)
    weights = make_weights(case, np.random.default_rng(0))
    with pytest.raises(ValueError, match="has no bf16 kernel"):
        run(case, weights, activations(2, 64, 64), "scalar")


@amx_tiers
@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
@pytest.mark.parametrize(("head_dim", "group_heads"), some([32, 64, 96, 128], [1, 3, 8]))
def test_attention_on_ragged_contexts(kv_type: str, head_dim: int, group_heads: int, tier: str) -> None:
    rng = np.random.default_rng(head_dim * 10 + group_heads)
    scale = 1 / head_dim**0.5
    contexts = (0, 1, 31, 32, 33, 511, 512, 513, 1100) if tier == "amx_int8" else (0, 33, 513)
    for context, query_tokens in zip(contexts, itertools.cycle((1, 70, 5, 2, 35, 3, 1, 4, 7)), strict=False):
        sequence = make_sequence(rng, context + query_tokens, head_dim, kv_type)
        queries = rng.standard_normal((query_tokens, group_heads, head_dim), np.float32)
        scalar = sequence.attend(queries, context, scale, "scalar", bf16=True)
        expected, bound = reference(sequence, queries, context, scale, bf16=True)
        assert (np.abs(scalar - expected) <= bound).all()
        assert bound.max() < 0.5  # or it would bound nothing
        for by_partitions in (False, True):
            tiled = sequence.attend(queries, context, scale, tier, by_partitions=by_partitions, bf16=True)
            assert same_bits(tiled, scalar)
        assert same_bits(sequence.attend(queries, context, scale, "scalar", by_partitions=True, bf16=True), scalar)


@amx_tiers
@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
@pytest.mark.parametrize("factor", [20, 60, 1000])
def test_attention_with_weights_of_all_sizes(factor: float, kv_type: str, tier: str) -> None:
    """Those that leave the normal numbers too, by themselves or with their value's scale."""
    rng = np.random.default_rng(11)
    sequence = make_sequence(rng, 600, 64, kv_type)
    queries = np.float32(factor) * rng.standard_normal((20, 3, 64), np.float32)
    scalar = sequence.attend(queries, 580, 0.125, "scalar", bf16=True)
    assert np.isfinite(scalar).all()
    assert same_bits(sequence.attend(queries, 580, 0.125, tier, bf16=True), scalar)


@amx_tiers
@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
def test_attention_with_scores_of_all_sizes(kv_type: str, tier: str) -> None:
    """Far apart, the largest takes all; one that overflows makes its row NaN."""
    keys = np.full((40, 32), -1.1e5, np.float32)
    values = np.zeros((40, 32), np.float32)
    keys[7], values[7] = 1.1e5, 1
    pages = np.full((2, block_bytes(kv_type, 32)), 0xFF, np.uint8)
    page_table = np.arange(2, dtype=np.int32)
    testing.write_kv(pages, page_table, kv_type, 0, keys, values, "scalar")
    queries = np.full((1, 3, 32), 1, np.float32) * np.array([1, 3.3e10, 3e34], np.float32)[:, None]
    for each in (tier, "scalar"):
        output = testing.attention(queries, pages, page_table, kv_type, 39, 1.7, each, bf16=True)[0]
        assert np.allclose(output[:2], 1, rtol=2**-7)
        assert np.isnan(output[2]).all()


@amx_tiers
@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
def test_attention_does_not_depend_on_the_chunk(kv_type: str, tier: str) -> None:
    rng = np.random.default_rng(7)
    sequence = make_sequence(rng, 550, 64, kv_type)
    queries = rng.standard_normal((70, 3, 64), np.float32)
    whole = sequence.attend(queries, 480, 0.3, tier, bf16=True)
    for size in (1, 2, 5, 16, 33, 69):
        chunks = [sequence.attend(queries[i : i + size], 480 + i, 0.3, tier, bf16=True) for i in range(0, 70, size)]
        assert same_bits(np.concatenate(chunks), whole), size


@amx_tiers
@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
def test_later_tokens_are_not_seen(kv_type: str, tier: str) -> None:
    rng = np.random.default_rng(9)
    sequence = make_sequence(rng, 600, 32, kv_type)
    queries = rng.standard_normal((40, 2, 32), np.float32)
    before = sequence.attend(queries, 500, 0.25, tier, bf16=True)
    infinite = np.full((60, 32), np.inf, np.float32)
    testing.write_kv(sequence.pages, sequence.page_table, kv_type, 540, infinite, -infinite, "scalar")
    after = sequence.attend(queries, 500, 0.25, tier, bf16=True)
    assert np.isfinite(before).all()
    assert same_bits(before, after)


MODEL_TIERS = ["scalar", AMX_TIERS[0]]
MODELS = [("sym_int4", 32, "bf16"), ("asym_int4", 32, "int8"), ("lut4", 32, "fp32"), ("int8", 32, "bf16")]
WIDE = {**QWEN3, "intermediate_size": 192}


def feed(model: Sequences, chunks: dict[int, list[int]], prompts: int) -> None:
    model.model.step(*model.arrays(chunks), [None] * len(chunks), (), None, prompts)


@pytest.mark.parametrize("compute_type", ["int8", "bf16"])
@pytest.mark.parametrize("tier", MODEL_TIERS)
@pytest.mark.parametrize(("weights", "config"), some(MODELS, [LLAMA, WIDE]))
def test_a_prompt_gives_the_same_bits_however_it_is_fed(
    make: MakeModel, config: dict[str, Any], weights: tuple[str, int, str], tier: str, compute_type: str
) -> None:
    kind, group, kv_type = weights

    def fresh(threads: int = 1) -> Sequences:
        prompts = "bf16" if compute_type == "int8" else "same"
        options = {
            "compute_type": compute_type, "prompt_compute_type": prompts, "kv_type": kv_type, "threads": threads
        }  # fmt: skip
        return make(config, kind, group, tier, **options)

    ids = tokens(75)
    model = fresh()
    assert model.model.has_bf16_prompts == (compute_type == "int8")
    whole = model.logits({0: ids})
    assert np.isfinite(whole).all()
    assert np.array_equal(one_by_one(fresh(), 1, ids), whole), "one token at a time, another slot"
    chunked = fresh(threads=2)
    parts = [chunked.logits({2: ids[begin:end]}) for begin, end in [(0, 3), (3, 40), (40, 41), (41, 75)]]
    assert np.array_equal(np.concatenate(parts), whole), "in chunks, on two threads"


@pytest.mark.parametrize("tier", MODEL_TIERS)
def test_answers_and_prompts_do_not_notice_each_other(make: MakeModel, tier: str) -> None:
    """Every step has answers of some sequences and prompts of others; what is stored is as if each had been alone."""

    def fresh(threads: int = 1, prompt_compute_type: str = "bf16") -> Sequences:
        options = {"compute_type": "int8", "kv_type": "bf16", "threads": threads}
        return make(WIDE, "sym_int4", 32, tier, prompt_compute_type=prompt_compute_type, **options)

    prompts, answers = [tokens(40, 1), tokens(33, 2)], [tokens(20, 3), tokens(20, 4)]
    together = fresh(threads=2)
    feed(together, {0: prompts[0]}, 1)
    for step in range(20):
        feed(together, {0: [answers[0][step]], 1: prompts[1][2 * step : 2 * step + 2] or [5]}, 1)
    last = together.logits({0: [7], 1: [7]})

    alone = fresh()
    feed(alone, {0: prompts[0]}, 1)
    for token in answers[0]:
        feed(alone, {0: [token]}, 0)
    feed(alone, {1: [*prompts[1], 5, 5, 5]}, 1)
    assert np.array_equal(alone.logits({0: [7]}), last[:1])
    assert np.array_equal(alone.logits({1: [7]}), last[1:])

    # Answers are not computed as prompts, and without bf16 there is no difference.
    as_prompt = fresh()
    feed(as_prompt, {0: [*prompts[0], *answers[0]]}, 1)
    assert not np.array_equal(as_prompt.logits({0: [7]}), last[:1])
    same = [fresh(prompt_compute_type="same") for _ in range(2)]
    for model, kinds in zip(same, (0, 1), strict=True):
        feed(model, {0: prompts[0]}, kinds)
    assert np.array_equal(same[0].logits({0: [7]}), same[1].logits({0: [7]}))


# The scalar tier takes long: there the numbers of threads are spread over the numbers of answers.
SCALAR_THREADS = {0: (1, 4), 5: (1, 2), 220: (1, 3)}


def check_threads_that_share_rows(make: MakeModel, tier: str, compute_type: str, prompts: str, answers: int) -> None:
    """Enough rows for every thread to have its own, in blocks of several heights, and in the head too."""
    prompt, other = answers, answers + 1  # their slots
    begin = {slot: tokens(3, slot) for slot in range(answers)}
    step = {slot: tokens(1, 7 + slot) for slot in range(answers)} | {prompt: tokens(301, 20), other: tokens(191, 21)}
    outcomes = []
    for threads in SCALAR_THREADS[answers] if tier == "scalar" else (1, 2, 3, 4, 5):
        options = {
            "compute_type": compute_type, "prompt_compute_type": prompts, "kv_type": "bf16", "threads": threads
        }  # fmt: skip
        model = make(WIDE, "asym_int4", 32, tier, sequences=answers + 2, context=704, **options)
        if begin:
            feed(model, begin, 0)
        feed(model, step, 2)
        feed(model, {prompt: tokens(193, 22)}, 1)
        last = model.logits({prompt: tokens(200, 23), other: [7]})
        outcomes.append((last, model.logits({slot: [7] for slot in range(min(answers, 5))} | {other: [7]})))
    for last, after in outcomes[1:]:
        assert np.array_equal(last, outcomes[0][0])
        assert np.array_equal(after, outcomes[0][1])


@pytest.mark.parametrize(("answers", "types"), some([0, 5, 220], [("int8", "bf16"), ("bf16", "same")]))
@pytest.mark.parametrize("tier", MODEL_TIERS)
def test_threads_that_share_rows_give_the_same(
    make: MakeModel, tier: str, types: tuple[str, str], answers: int
) -> None:
    check_threads_that_share_rows(make, tier, *types, answers)


@pytest.mark.parametrize(("tier", "answers"), some(TIERS, [0, 220]))
def test_threads_that_share_int8_rows_give_the_same(make: MakeModel, tier: str, answers: int) -> None:
    check_threads_that_share_rows(make, tier, "int8", "same", answers)


@pytest.mark.parametrize("tier", TIERS)
def test_answers_are_in_bf16_by_default_where_there_are_tiles(make: MakeModel, tier: str) -> None:
    for kind in ("int8", "sym_int4"):
        logits = {
            compute_type: make(WIDE, kind, 32, tier, compute_type=compute_type, kv_type="bf16").logits({0: [5, 6]})
            for compute_type in ("auto", "int8", "fp32", *(["bf16"] if tier == "amx_int8" else []))
        }
        expected = "bf16" if tier == "amx_int8" else "int8"
        same = [name for name in logits if np.array_equal(logits["auto"], logits[name])]
        assert same == ["auto", expected]


@pytest.mark.parametrize(
    ("kind", "others"),
    [("sym_int4", {"k_proj": "int8", "v_proj": "int8"}), ("int8", {"k_proj": "sym_int4", "v_proj": "sym_int4"})],
    ids=["keys and values of 8 bits", "queries of 8 bits"],
)
@pytest.mark.parametrize("compute_type", ["auto", "bf16"])
def test_an_answer_in_the_last_layer_does_not_notice_a_prompt(
    tmp_path: Path, kind: WeightType, others: Mapping[str, WeightType], compute_type: str
) -> None:
    """Beside a prompt that nobody samples from yet, queries are computed without keys and values."""
    if "amx_int8" not in TIERS:
        pytest.skip("bf16 needs AMX")
    folder = write_model(tmp_path / "mixed", WIDE, random_tensors(WIDE), kind, 32, others)

    logits = []
    for company in ({}, {1: tokens(30)}):
        model = Sequences(folder, compute_type=compute_type, kv_type="fp32")
        sampler = _native.Sampler(vocab_size=model.model.vocab_size, prompt=(), temperature=0.0)
        chunks = {0: [3], **company}
        model.model.step(*model.arrays(chunks), [sampler, None][: len(chunks)], (), None, len(company))
        logits.append(model.logits({0: [4]}))
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("tier", MODEL_TIERS)
def test_answers_in_bf16_do_not_notice_their_number(make: MakeModel, tier: str) -> None:
    """One answer to 40 at a time, beside a prompt and without."""

    def fresh(threads: int = 1, compute_type: str = "bf16") -> Sequences:
        return make(
            WIDE, "asym_int4", 32, tier, compute_type=compute_type, kv_type="int8", threads=threads, sequences=41
        )

    together, alone, answer = fresh(threads=2), fresh(), tokens(12, 1)
    for step, count in enumerate((1, 2, 7, 16, 17, 32, 33, 40)):
        others = {slot: [slot + step] for slot in range(1, count)}
        feed(together, {**others, 0: answer[step : step + 1]}, 0)
        feed(alone, {0: answer[step : step + 1]}, 0)
    feed(together, {0: answer[8:9], 40: tokens(20, 2)}, 1)
    feed(alone, {0: answer[8:9]}, 0)
    last = together.logits({0: answer[9:10]})
    assert np.array_equal(alone.logits({0: answer[9:10]}), last)
    other = fresh(compute_type="int8")
    feed(other, {0: answer[:9]}, 0)
    assert not np.array_equal(other.logits({0: answer[9:10]}), last)


def test_bf16_prompts_are_close_to_fp32_ones(make: MakeModel) -> None:
    ids = tokens(60)
    exact = make(WIDE, "sym_int4", 32, "scalar", compute_type="fp32").logits({0: ids})
    rounded = make(WIDE, "sym_int4", 32, "scalar", compute_type="int8", prompt_compute_type="bf16").logits({0: ids})
    error = np.linalg.norm(rounded - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < error.max() < 4 * 2.0**-8, "a few times bf16's unit roundoff"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompt_compute_type": "fp8"}, "prompt_compute_type: 'fp8' is not same, bf16 or auto"),
        ({"prompt_compute_type": "bf16", "compute_type": "fp32"}, "bf16 does not go with compute_type fp32"),
        (
            {"prompt_compute_type": "bf16", "tier": "avx2"},
            "prompt_compute_type: bf16 needs a processor with AMX; the kernels here are avx2's",
        ),
        (
            {"compute_type": "bf16", "tier": "avx2"},
            "compute_type: bf16 needs a processor with AMX; the kernels here are avx2's",
        ),
    ],
)
def test_what_can_not_be_had_is_refused_by_name(
    make: MakeModel,
    options: dict[str, Any],
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason):
        make(LLAMA, "sym_int4", 32, **{"compute_type": "int8", **options})


def test_auto_is_bf16_where_there_are_tiles(make: MakeModel) -> None:
    model = make(LLAMA, "sym_int4", 32, compute_type="int8", prompt_compute_type="auto")
    assert model.model.has_bf16_prompts == (model.model.tier == "amx_int8")
    assert not make(LLAMA, "sym_int4", 32, compute_type="fp32", prompt_compute_type="auto").model.has_bf16_prompts
    assert not make(
        LLAMA, "sym_int4", 32, "scalar", compute_type="int8", prompt_compute_type="auto"
    ).model.has_bf16_prompts


def test_pages_of_16_bits_are_those_that_prompts_are_computed_from(make: MakeModel, tmp_path: Path) -> None:
    folder = str(write_random_model(tmp_path / "heads of 32", {**LLAMA, "head_dim": 32}))
    chosen = partial(_native.Model.chosen_kv_type, folder)
    best = "bf16" if make(LLAMA, "sym_int4", 32).model.tier == "amx_int8" else "int16"
    assert chosen("auto", "auto", "auto") == chosen("auto", "int8", "auto") == best
    assert chosen("auto", "auto", "same") == chosen("auto", "fp32", "auto") == "int16"
    assert [chosen(name, "auto", "auto") for name in _native.KV_TYPES] == list(_native.KV_TYPES)
    with pytest.raises(ValueError, match="kv_type: 'int3' is not"):
        chosen("int3", "auto", "auto")
    with pytest.raises(ValueError, match="prompt_compute_type: 'int3' is not"):
        chosen("auto", "auto", "int3")
    narrow = str(write_random_model(tmp_path / "heads of 16", {**LLAMA, "head_dim": 16}))
    assert _native.Model.chosen_kv_type(narrow, "auto", "auto", "auto") == "int16"
    for prompts in ("auto", "same"):
        model = Sequences(Path(folder), compute_type="int8", prompt_compute_type=prompts, kv_type="auto").model
        assert model.kv_type == chosen("auto", "int8", prompts)


def test_more_prompts_than_sequences_are_refused(make: MakeModel) -> None:
    model = make(LLAMA, "sym_int4", 32)
    with pytest.raises(ValueError, match="prompts: 2 of 1 sequences"):
        feed(model, {0: [1, 2]}, 2)
