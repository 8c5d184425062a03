from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.kernel_cases import MODEL_CASES, ODD_CASES, LinearCase, Weights, code_values, make_weights, matrix_of
from kernels import _native
from kernels._native import testing
from tests.sizes import FULL, some

TIERS = testing.linear_tiers()
PLAIN_TIERS = _native.available_tiers()
FAST_TIERS = [tier for tier in TIERS if tier != "scalar"]
BATCHES = [*range(1, 34), 64] if FULL else [*range(1, 10), 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 64]
EMULATED_BATCHES = [1, 7, 16, 33]  # emulation takes its time, and test_amx.py tries the others
MOST_ROWS = max(BATCHES)
EPSILON = 2.0**-24  # of one rounding to nearest in fp32
CANARY = np.float32(12345.678)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Quantized = tuple[NDArray[np.int8], NDArray[np.int8] | None, F32, NDArray[np.int32], F32]

every_tier = pytest.mark.parametrize("tier", TIERS)
every_case = pytest.mark.parametrize("case", ODD_CASES, ids=lambda case: case.name)
integer_cases = pytest.mark.parametrize(
    "case", [case for case in ODD_CASES if case.is_integer], ids=lambda case: case.name
)


def weights_of(case: LinearCase) -> Weights:
    return make_weights(case, np.random.default_rng(case.rows * 1000 + case.cols))


def activations(rows: int, cols: int, group: int) -> F32:
    """Normal rows, with what quantization may trip over in some: zero groups, one value alone, the extremes only."""
    rng = np.random.default_rng(rows + cols)
    x = rng.standard_normal((rows, cols), dtype=np.float32)
    span = group or min(cols, 32)
    x[rows // 2, :span] = 0.0
    x[rows // 3, -span:] = 0.0
    x[rows // 3, -1] = -3.0
    x[-1] = np.where(rng.random(cols) < 0.5, np.float32(7.0), np.float32(-7.0))
    return x


def run_int8(
    case: LinearCase,
    weights: Weights,
    q: Quantized,
    tier: str,
    y: F32 | None = None,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tiles: tuple[int, int | None] = (0, None),
) -> F32:
    y = np.empty((len(q[0]), case.rows), np.float32) if y is None else y
    testing.linear_int8(
        matrix_of(case, weights),
        q,
        y,
        tier,
        bias=bias,
        accumulate=accumulate,
        tile_begin=tiles[0],
        tile_end=tiles[1],
    )
    return y


def run_fp32(
    case: LinearCase,
    weights: Weights,
    x: F32,
    tier: str,
    y: F32 | None = None,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tiles: tuple[int, int | None] = (0, None),
) -> F32:
    y = np.empty((len(x), case.rows), np.float32) if y is None else y
    testing.linear_fp32(
        matrix_of(case, weights),
        x,
        y,
        tier,
        bias=bias,
        accumulate=accumulate,
        tile_begin=tiles[0],
        tile_end=tiles[1],
    )
    return y


def first_rows(q: Quantized, begin: int, end: int) -> Quantized:
    values, low_values, scales, starts, offsets = q
    low_values = None if low_values is None else low_values[begin:end]
    return values[begin:end], low_values, scales[begin:end], starts[begin:end], offsets[begin:end]


def integers(q: Quantized) -> NDArray[np.int64]:
    """The integers [rows, cols] that one term or two stand for."""
    values = q[0].astype(np.int64)
    return values if q[1] is None else 256 * values + q[1]


def same_bits(a: F32, b: F32) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def dequantized(case: LinearCase, weights: Weights) -> F64:
    """The weights by their formulas: exact in float64, so that one rounding to fp32 gives the kernels' value."""
    if weights.values is not None:
        if case.weight_type == "fp16":
            return weights.values.astype(np.float16).astype(np.float64)
        bits = weights.values.view(np.uint32).astype(np.int64)
        if case.weight_type == "bf16":
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    assert weights.codes is not None
    assert weights.scales is not None
    values = code_values(weights, case.weight_type).astype(np.float64) * np.repeat(
        weights.scales.astype(np.float64), case.group, axis=1
    )
    if weights.minima is not None:
        values += np.repeat(weights.minima.astype(np.float64), case.group, axis=1)
    return values


def packed_by_definition(case: LinearCase, weights: Weights) -> NDArray[np.uint8]:
    """The layout as contract/packed_matrix.h words it, one array operation for each sentence."""
    tiles, pad = -(-case.rows // 32), -case.rows % 32
    if weights.values is not None:
        exact = np.pad(dequantized(case, weights).astype(np.float32), ((0, pad), (0, 0)))
        if case.weight_type in ("fp16", "fp32"):
            stored = exact.astype(np.float16) if case.weight_type == "fp16" else exact
            return stored.reshape(tiles, 32, case.cols).swapaxes(1, 2).copy().view(np.uint8).reshape(tiles, -1)
        halves = (exact.view(np.uint32) >> 16).astype(np.uint16).reshape(tiles, 32, case.cols // 2, 2)
        return halves.swapaxes(1, 2).copy().view(np.uint8).reshape(tiles, -1)
    assert weights.codes is not None
    groups, step = case.cols // case.group, 4 if case.weight_type == "int8" else 8
    # [tile, column, lane, group, kb, input] -> [tile, group, kb, column, lane, input]
    codes = np.pad(weights.codes, ((0, pad), (0, 0))).reshape(tiles, 2, 16, groups, case.group // step, step)
    codes = codes.transpose(0, 3, 4, 1, 2, 5)
    if step == 8:
        codes = codes[..., :4] | np.left_shift(codes[..., 4:], np.uint8(4))
    parts = [codes.reshape(tiles, groups, -1)]
    for numbers in (weights.scales, weights.minima):
        if numbers is not None:
            by_tile = np.pad(numbers, ((0, pad), (0, 0))).reshape(tiles, 32, groups).swapaxes(1, 2)
            parts.append(by_tile.copy().view(np.uint8).reshape(tiles, groups, 64))
    return np.concatenate(parts, axis=2).reshape(tiles, -1)


@every_case
def test_packing_follows_the_layout(case: LinearCase) -> None:
    weights = weights_of(case)
    expected = packed_by_definition(case, weights)
    assert weights.packed.shape == expected.shape
    assert (weights.packed == expected).all()
    assert _native.packed_bytes(case.weight_type, case.rows, case.cols, case.group) == expected.size


@every_case
def test_dequantizing_is_exact(case: LinearCase) -> None:
    weights = weights_of(case)
    values = dequantized(case, weights).astype(np.float32)
    for tier in PLAIN_TIERS:
        assert same_bits(matrix_of(case, weights).dequantize(tier), values), tier


def test_fp16_rounds_to_nearest_even_as_numpy_does() -> None:
    """Every fp16 number, their midpoints and the neighbours of those, subnormal numbers and what becomes infinite."""
    numbers = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (numbers[:-1] + numbers[1:]) / 2
    near = np.concatenate([numbers, middles, np.nextafter(middles, 0), np.nextafter(middles, np.float32(1e9))])
    near = np.concatenate([near, np.array([65519.99, 65520.0, 1e9, np.inf, 1e-8, 1e-30, 1e-45], np.float32)])
    values = np.concatenate([near, -near])[None]
    packed = _native.pack_float(values, "fp16")
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    for tier in PLAIN_TIERS:
        assert same_bits(_native.PackedMatrix(packed, "fp16", 1, values.size, 0).dequantize(tier), expected), tier
    nan = _native.pack_float(np.full((1, 1), np.nan, np.float32), "fp16")
    assert np.isnan(_native.PackedMatrix(nan, "fp16", 1, 1, 0).dequantize()).all()


def test_bf16_rounds_to_nearest_even_and_keeps_what_is_not_finite() -> None:
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF800000, 0x7F800001]], np.uint32)
    packed = _native.pack_float(bits.view(np.float32), "bf16")
    values = _native.PackedMatrix(packed, "bf16", 1, 6, 0).dequantize().view(np.uint32) >> 16
    assert values[0, :5].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80]
    assert values[0, 5] == 0x7FC0


def test_every_fp16_scale_is_widened_exactly() -> None:
    positive = np.arange(0x7C00, dtype=np.uint16).view(np.float16)  # zero, subnormals, normals
    scales = np.concatenate([positive, -positive]).reshape(-1, 1)
    codes = np.full((len(scales), 32), 9, np.uint8)
    matrix = _native.PackedMatrix(_native.pack_int4(codes, scales, None), "sym_int4", len(scales), 32, 32)
    for tier in PLAIN_TIERS:
        assert (matrix.dequantize(tier) == scales.astype(np.float32)).all()


@every_tier
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_quantizing_activations(group: int, terms: int, tier: str) -> None:
    wide = activations(9, 5 * group + 3, group) * np.logspace(-12, 12, 9, dtype=np.float32)[:, None]
    wide[4, :group] = np.float32(1e-38)  # too small to divide by
    x = wide[:, : 4 * group]  # rows further apart than they are long
    q = testing.quantize_rows(x, group, tier, terms)
    _, low_values, scales, starts, offsets = q
    steps = np.float32(127 if terms == 1 else 32512)
    blocks = x.reshape(9, 4, group)
    largest = np.abs(blocks).max(axis=2)
    usable = largest >= np.float32(2.0**-100)
    inverse = np.where(usable, steps / np.where(usable, largest, np.float32(1.0)), np.float32(0.0))
    n = integers(q).reshape(blocks.shape)
    assert (low_values is None) == (terms == 1)
    assert (n == np.rint(blocks * inverse[..., None].astype(np.float32))).all()
    assert same_bits(scales, np.where(usable, largest / steps, np.float32(0.0)).astype(np.float32))
    sums = n.sum(axis=2).astype(np.int32)
    assert (starts == -8 * sums).all()
    assert same_bits(offsets, sums.astype(np.float32) * scales)
    assert not scales[4, 0]
    assert np.abs(n[~np.isin(np.arange(9), [4])]).max() == steps
    error = np.abs(blocks.astype(np.float64) - n * scales[..., None].astype(np.float64))
    assert (error[usable] <= 0.501 * scales[usable][:, None]).all()

    for block_rows, block_groups in ((1, 1), (2, 3), (9, 2), (4, 4)):
        blockwise = testing.quantize_rows(x, group, tier, terms, block_rows, block_groups * group)
        assert (integers(blockwise) == integers(q)).all()
        assert (blockwise[3] == starts).all()
        assert same_bits(blockwise[2], scales)
        assert same_bits(blockwise[4], offsets)


@every_tier
@pytest.mark.parametrize(("groups", "block"), [(5, (4, 1)), (12, (2, 4)), (15, (2, 1)), (7, (3, 2))])
def test_quantizing_some_columns_leaves_the_others(groups: int, block: tuple[int, int], tier: str) -> None:
    """Blocks whose first and last group are as far apart as a vector's lanes, too, though they have fewer."""
    x = activations(12, groups * 32, 32)
    whole = testing.quantize_rows(x, 32, tier, 1)
    in_blocks = testing.quantize_rows(x, 32, tier, 1, block[0], block[1] * 32)
    assert (integers(in_blocks) == integers(whole)).all()
    assert same_bits(in_blocks[2], whole[2])
    assert (in_blocks[3] == whole[3]).all()
    assert same_bits(in_blocks[4], whole[4])


@pytest.mark.parametrize("terms", [1, 2])
@integer_cases
def test_int8_activations(case: LinearCase, terms: int) -> None:
    weights = weights_of(case)
    q = testing.quantize_rows(activations(MOST_ROWS, case.cols, case.group), case.group, "scalar", terms)
    result = run_int8(case, weights, q, "scalar")

    assert weights.codes is not None
    assert weights.scales is not None
    groups = case.cols // case.group
    factors = code_values(weights, case.weight_type).astype(np.float64)
    exact, magnitude = np.zeros(result.shape), np.zeros(result.shape)
    for j in range(groups):
        span = slice(j * case.group, (j + 1) * case.group)
        # Sums of products below 2^31: float64 has them exactly, as int64 would.
        dot = integers(q)[:, span].astype(np.float64) @ factors[:, span].T
        addends = [dot * weights.scales[:, j].astype(np.float64)]
        if weights.minima is not None:
            sums = integers(q)[:, span].astype(np.float64).sum(axis=1, keepdims=True)
            addends.append(sums * weights.minima[:, j].astype(np.float64))
        for addend in addends:
            exact += addend * q[2][:, j, None]
            magnitude += np.abs(addend * q[2][:, j, None])
    # Each addend is rounded twice at most before it is added (a sum of two terms' products need not fit 24 bits), and
    # at most once with each addition after that.
    additions = groups * (2 if weights.minima is not None else 1)
    assert (np.abs(result - exact) <= (additions + 2) * EPSILON * magnitude).all()

    for tier in FAST_TIERS:
        for rows in EMULATED_BATCHES if tier.endswith("emulated") else BATCHES:
            assert same_bits(run_int8(case, weights, first_rows(q, 0, rows), tier), result[:rows]), (tier, rows)


@every_tier
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("weight_type", ["sym_int4", "asym_int4", "lut4", "int8"])
def test_integer_sums_are_exact_at_the_extremes(weight_type: str, group: int, tier: str) -> None:
    """With all scales 1 the result is the integer sum itself, below 2^24: saturation anywhere would show."""
    case = LinearCase(weight_type, 64, 384, group)
    rng = np.random.default_rng(7)
    lowest, highest = (1, 255) if weight_type == "int8" else (0, 15)
    codes = rng.choice(np.array([lowest, highest], np.uint8), (64, 384))
    codes[0], codes[1], codes[2] = lowest, highest, 8
    values = rng.choice(np.array([-127, 127], np.int8), (10, 384))
    values[0], values[1] = 127, -127
    ones = np.ones((64, 384 // group), np.float16)
    if weight_type == "int8":
        packed = _native.pack_int8(codes, ones)
    else:
        packed = _native.pack_int4(codes, ones, ones * -3 if weight_type == "asym_int4" else None)
    table = (-127, *range(-7, 7), 127) if weight_type == "lut4" else None
    sums = values.astype(np.int32).reshape(10, -1, group).sum(axis=2, dtype=np.int32)
    q = (values, None, np.ones(sums.shape, np.float32), -8 * sums, sums.astype(np.float32))
    weights = Weights(packed, codes, table=table)
    factors = code_values(weights, weight_type) - (3 if weight_type == "asym_int4" else 0)
    assert (run_int8(case, weights, q, tier) == values.astype(np.int64) @ factors.T).all()

    low_values = rng.choice(np.array([-128, 127], np.int8), values.shape)
    low_values[0], low_values[1] = -128, 127
    sums = (256 * values.astype(np.int32) + low_values).reshape(10, -1, group).sum(axis=2, dtype=np.int32)
    two_terms = (values, low_values, np.ones(sums.shape, np.float32), -8 * sums, sums.astype(np.float32))
    assert same_bits(run_int8(case, weights, two_terms, tier), run_int8(case, weights, two_terms, "scalar"))


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("rows", [131, 129])
@pytest.mark.parametrize("weight_type", ["sym_int4", "asym_int4", "lut4", "int8"])
def test_many_rows_of_long_inputs(weight_type: str, rows: int, terms: int) -> None:
    """Kernels that go through rows and inputs in parts begin their sums where they ended them."""
    case = LinearCase(weight_type, 70, 4096 + 96, 32)
    weights = weights_of(case)
    q = testing.quantize_rows(activations(rows, case.cols, case.group), case.group, "scalar", terms)
    rng = np.random.default_rng(rows)
    before, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, case.rows), case.rows))

    def last_tiles_of(tier: str) -> F32:
        return run_int8(case, weights, q, tier, before.copy(), bias=bias, accumulate=True, tiles=(1, 3))

    result, last_tiles = run_int8(case, weights, q, "scalar"), last_tiles_of("scalar")
    for tier in [tier for tier in FAST_TIERS if not tier.endswith("emulated")]:
        assert same_bits(run_int8(case, weights, q, tier), result), tier
        assert same_bits(last_tiles_of(tier), last_tiles), tier


@every_case
def test_fp32_activations(case: LinearCase) -> None:
    weights = weights_of(case)
    rows = MOST_ROWS if case.rows * case.cols < 40_000 else 9  # the scalar tier takes its time
    x = activations(rows, case.cols, case.group)
    result = run_fp32(case, weights, x, "scalar")
    w = dequantized(case, weights).astype(np.float32).astype(np.float64)
    exact, magnitude = x.astype(np.float64) @ w.T, np.abs(x).astype(np.float64) @ np.abs(w).T
    assert (np.abs(result - exact) <= case.cols * EPSILON * magnitude).all()
    for tier in FAST_TIERS:
        for count in [count for count in BATCHES if count <= rows]:
            assert same_bits(run_fp32(case, weights, x[:count], tier), result[:count]), (tier, count)


@every_tier
@pytest.mark.parametrize(
    "case", [LinearCase("asym_int4", 70, 192, 64), LinearCase("bf16", 70, 66, 0)], ids=lambda case: case.name
)
def test_a_row_does_not_depend_on_its_batch(case: LinearCase, tier: str) -> None:
    weights = weights_of(case)
    x = activations(19, case.cols, case.group)
    together = run_fp32(case, weights, x, tier)
    for row in range(len(x)):
        assert same_bits(run_fp32(case, weights, x[row : row + 1], tier), together[row : row + 1])
    if case.is_integer:
        q = testing.quantize_rows(x, case.group, tier)
        together = run_int8(case, weights, q, tier)
        for row in range(len(x)):
            assert same_bits(run_int8(case, weights, first_rows(q, row, row + 1), tier), together[row : row + 1])


@every_tier
@pytest.mark.parametrize(("rows", "batch"), some([1, 15, 16, 17, 31, 33, 100], [1, 2, 5, 9]))
@pytest.mark.parametrize("weight_type", ["sym_int4", "lut4", "int8", "fp32"])
def test_nothing_is_written_beyond_the_outputs(weight_type: str, batch: int, rows: int, tier: str) -> None:
    case = LinearCase(weight_type, rows, 64, 0 if weight_type == "fp32" else 64)
    weights = weights_of(case)
    x = activations(batch, 64, case.group)
    calls: list[Callable[..., F32]] = [partial(run_fp32, case, weights, x, tier)]
    if case.is_integer:
        q = testing.quantize_rows(x, case.group, tier)
        calls.append(partial(run_int8, case, weights, q, tier))
    for call in calls:
        around = np.full((batch + 2, rows + 40), CANARY, np.float32)
        inside = around[1:-1, 3 : 3 + rows]
        call(inside)
        assert not (inside == CANARY).any()
        inside[:] = CANARY
        assert (around == CANARY).all()
        tiles = -(-rows // 32)
        call(inside, tiles=(tiles - 1, tiles))  # the last tile alone
        assert not (inside[:, (tiles - 1) * 32 :] == CANARY).any()
        inside[:, (tiles - 1) * 32 :] = CANARY
        assert (around == CANARY).all()


@every_tier
@pytest.mark.parametrize(
    "case", [LinearCase("sym_int4", 50, 128, 64), LinearCase("bf16", 50, 128, 0)], ids=lambda case: case.name
)
def test_bias_and_accumulation(case: LinearCase, tier: str) -> None:
    weights = weights_of(case)
    rng = np.random.default_rng(0)
    x = activations(5, case.cols, case.group)
    bias, before = rng.standard_normal(50, np.float32), rng.standard_normal((5, 50), np.float32)
    calls: list[Callable[..., F32]] = [partial(run_fp32, case, weights, x, tier)]
    if case.is_integer:
        q = testing.quantize_rows(x, case.group, tier)
        calls.append(partial(run_int8, case, weights, q, tier))
    for call in calls:
        plain = call()
        assert same_bits(call(bias=bias), plain + bias)
        assert same_bits(call(before.copy(), accumulate=True), plain + before)
        assert same_bits(call(before.copy(), bias=bias, accumulate=True), plain + bias + before)


@pytest.mark.parametrize("case", MODEL_CASES, ids=lambda case: case.name)
def test_layers_of_models(case: LinearCase) -> None:
    """The shapes that are timed, two tiles of outputs of each: every tier against the scalar one."""
    narrow = LinearCase(case.weight_type, 64, case.cols, case.group)  # the same inputs, two tiles of outputs
    weights = weights_of(narrow)
    x = activations(4, case.cols, case.group)
    expected = run_fp32(narrow, weights, x, "scalar")
    for tier in FAST_TIERS:
        assert same_bits(run_fp32(narrow, weights, x, tier), expected)
    if case.is_integer:
        q = testing.quantize_rows(x, case.group, "scalar")
        expected = run_int8(narrow, weights, q, "scalar")
        for tier in FAST_TIERS:
            assert same_bits(run_int8(narrow, weights, q, tier), expected)


def test_what_the_layout_cannot_hold_is_refused_by_name() -> None:
    codes, scales = np.ones((4, 64), np.uint8), np.ones((4, 1), np.float16)
    with pytest.raises(ValueError, match="an int4 code is not in 0"):
        _native.pack_int4(codes * 16, scales, None)
    with pytest.raises(ValueError, match="an int8 code is 0"):
        _native.pack_int8(codes * 0, scales)
    with pytest.raises(ValueError, match="group: 16 is not 32, 64 or 128"):
        _native.pack_int4(codes, np.ones((4, 4), np.float16), None)
    with pytest.raises(ValueError, match="scales"):
        _native.pack_int4(codes, np.ones((3, 1), np.float16), None)
    with pytest.raises(ValueError, match="minima"):
        _native.pack_int4(codes, scales, np.ones((4, 2), np.float16))
    with pytest.raises(ValueError, match="cols: 3 is odd"):
        _native.pack_float(np.ones((1, 3), np.float32), "bf16")
    with pytest.raises(ValueError, match="weight_type: 'sym_int4' is not fp16, bf16 or fp32"):
        _native.pack_float(np.ones((1, 64), np.float32), "sym_int4")
    with pytest.raises(ValueError, match="unknown weight type 'int3'"):
        _native.packed_bytes("int3", 1, 64, 64)
    with pytest.raises(ValueError, match="cols: 100 is not a multiple of the group, 64"):
        _native.packed_bytes("int8", 1, 100, 64)
    with pytest.raises(ValueError, match="rows: 0"):
        _native.packed_bytes("int8", 0, 64, 64)
    nibbles = _native.pack_int4(codes, scales, None)
    with pytest.raises(ValueError, match="table: 0 entries, not 16"):
        _native.PackedMatrix(nibbles, "lut4", 4, 64, 64)
    with pytest.raises(ValueError, match=r"table: -128 is not in -127 \.\. 127"):
        _native.PackedMatrix(nibbles, "lut4", 4, 64, 64, table=range(-128, -112))
    with pytest.raises(ValueError, match="table: sym_int4 has none"):
        _native.PackedMatrix(nibbles, "sym_int4", 4, 64, 64, table=range(16))
    with pytest.raises(ValueError, match="packed: "):
        _native.PackedMatrix(np.zeros((1, 64), np.uint8), "int8", 1, 64, 64)
