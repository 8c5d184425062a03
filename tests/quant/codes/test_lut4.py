import numpy as np
import pytest

from kernels import _native
from quant.codes.lut4 import NF4, NORMAL, dequantize_lut4, quantize_lut4
from quant.errors import TensorError
from quant.methods.grids import TableGrid
from quant.packed.packed_matrix import pack_quantized

# Dettmers et al. 2023, appendix E.
NF4_REALS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def test_nf4_is_the_published_table_in_steps_of_a_127th() -> None:
    assert tuple(round(127 * value) for value in NF4_REALS) == NF4


def test_what_the_table_holds_is_exact() -> None:
    x = (np.array(NF4 * 4, np.float32) * np.float32(0.25)).reshape(2, 32)
    matrix = quantize_lut4("w", x, 32, NF4)
    assert (matrix.codes.reshape(-1, 16) == np.arange(16)).all()
    assert np.array_equal(dequantize_lut4(matrix), x)


def test_our_table_is_lloyds_for_groups_of_64_normal_values() -> None:
    x = np.random.default_rng(0).standard_normal((64, 20000)).astype(np.float32)
    grid = TableGrid(NORMAL)
    scales = grid.candidates(x)
    largest = np.zeros(x.shape[1], np.intp)
    errors = np.full(x.shape[1], np.inf)
    for number in range(len(scales.scales)):
        each = scales.taken(np.full(x.shape[1], number))
        error = np.square(each.scales * grid.levels(grid.codes(x, each)) - x).sum(0)
        largest[error < errors] = number
        errors = np.minimum(errors, error)
    best = scales.taken(largest)
    codes = grid.codes(x, best).astype(np.intp).reshape(-1)
    weights = np.broadcast_to(best.scales, x.shape).reshape(-1)
    levels = np.bincount(codes, x.reshape(-1) * weights) / np.bincount(codes, weights**2)
    assert np.abs(levels / np.abs(levels).max() * 127 - NORMAL).max() < 2
    assert errors.mean() / 64 == pytest.approx(0.0066, rel=0.03)


def test_a_table_that_is_longer_on_one_side_reaches_every_value() -> None:
    x = np.array([[-1.0, *[0.25] * 31], [1.0, *[0.25] * 31]], np.float32)
    matrix = quantize_lut4("w", x, 32, NORMAL)
    assert matrix.scales.astype(np.float32) == pytest.approx(np.array([[1 / 121], [1 / 127]]), rel=1e-3)
    assert dequantize_lut4(matrix)[:, 0] == pytest.approx(x[:, 0], rel=1e-3)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_value_takes_the_nearest_entry(group: int) -> None:
    x = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
    blocks = x.reshape(16, -1, group).astype(np.float64)
    steps = np.abs(blocks).max(-1, keepdims=True) / 127
    distances = np.abs(blocks[..., None] - steps[..., None] * np.array(NF4))
    chosen = quantize_lut4("w", x, group, NF4).codes.reshape(blocks.shape)
    at_chosen = np.take_along_axis(distances, chosen[..., None].astype(np.int64), -1)[..., 0]
    assert (at_chosen <= distances.min(-1) * (1 + 1e-5) + steps * 1e-4).all()


def test_normal_weights_lose_less_than_with_even_steps() -> None:
    x = np.random.default_rng(2).standard_normal((64, 512)).astype(np.float32)
    even = tuple(range(-127, 0, 17)) + tuple(range(9, 128, 17))
    even = tuple(sorted({*even[:15], 127}))
    errors = [np.square(dequantize_lut4(quantize_lut4("w", x, 64, table)) - x).mean() for table in (NF4, even)]
    assert errors[0] < 0.95 * errors[1]


def test_the_engine_reads_the_same_numbers() -> None:
    x = np.random.default_rng(3).standard_normal((33, 128)).astype(np.float32)
    matrix = quantize_lut4("w", x, 64, NF4)
    values = _native.PackedMatrix(pack_quantized(matrix), "lut4", 33, 128, 64, table=NF4).dequantize()
    assert np.array_equal(values, dequantize_lut4(matrix))


def test_zero_group() -> None:
    matrix = quantize_lut4("w", np.zeros((1, 32), np.float32), 32, NF4)
    assert not dequantize_lut4(matrix).any()


@pytest.mark.parametrize("table", [NF4[:15], NF4[::-1], (*NF4[:15], 128), tuple(range(16))])
def test_refuses_a_table_that_is_none(table: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="table"):
        quantize_lut4("w", np.zeros((1, 32), np.float32), 32, table)


def test_refuses_what_it_must() -> None:
    with pytest.raises(TensorError, match=r"'w'.*NaN"):
        quantize_lut4("w", np.full((1, 32), np.nan, np.float32), 32, NF4)
    with pytest.raises(TensorError, match=r"'w'.*multiple"):
        quantize_lut4("w", np.zeros((1, 33), np.float32), 32, NF4)
