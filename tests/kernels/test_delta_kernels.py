"""The kernels of Gated DeltaNet: the scalar ones against the recurrence in float64, the others bit for bit."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing
from tests.kernels.hybrid_model import F64, convolved, recurrence, sigmoid
from tests.kernels.tiny_model import F32
from tests.sizes import some

PAGE = _native.PAGE_TOKENS
EPSILON = 2.0**-24
SHAPES = [(16, 16), (24, 48), (128, 128), (7, 32), (256, 256), (1, 16)]
TIERS = [tier for tier in _native.available_tiers() if tier != "scalar"]


@dataclass(frozen=True, slots=True)
class Page:
    """A page's tokens of one value head: unit keys, queries of length key_dim^-0.5, decays in base 2."""

    state: F32 | None
    queries: F32
    keys: F32
    values: F32
    betas: F32
    decays: F32

    @property
    def dims(self) -> tuple[int, int]:
        return self.keys.shape[1], self.values.shape[1]


def page_of(key_dim: int, value_dim: int, *, seed: int = 0, has_state: bool = True, rate: float = 0.3) -> Page:
    rng = np.random.default_rng(seed)

    def unit(rows: int) -> F64:
        x = rng.standard_normal((rows, key_dim))
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    f32 = np.float32
    return Page(
        state=rng.standard_normal((key_dim, value_dim)).astype(f32) if has_state else None,
        queries=(unit(PAGE) * key_dim**-0.5).astype(f32),
        keys=unit(PAGE).astype(f32),
        values=rng.standard_normal((PAGE, value_dim)).astype(f32),
        betas=rng.uniform(0, 1, PAGE).astype(f32),
        decays=(-rng.exponential(rate, PAGE)).astype(f32).cumsum(dtype=f32),
    )


def run(page: Page, tier: str, cuts: tuple[int, ...] = (0, PAGE)) -> tuple[F32, F32, F32]:
    """Outputs and changes of the tokens, and the end state, in steps between these tokens. Anything else is NaN."""
    key_dim, value_dim = page.dims
    keys, changes, decays, outputs = (
        np.full(shape, np.nan, np.float32) for shape in ((key_dim, PAGE), (PAGE, value_dim), PAGE, (PAGE, value_dim))
    )
    end_state = np.full((key_dim, value_dim), np.nan, np.float32)
    for begin, end in pairwise(cuts):
        mine = slice(begin, end)
        keys[:, mine], decays[mine] = page.keys[mine].T, page.decays[mine]
        rows = np.ascontiguousarray(np.concatenate([page.queries[mine], page.keys[mine], page.values[mine]], 1))
        testing.delta_page(
            page.state, keys, changes, decays, page.betas[mine], rows, outputs[mine], end_state, begin, tier
        )
    return outputs, changes, end_state


@pytest.mark.parametrize(("key_dim", "value_dim"), SHAPES)
@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("rate", [1e-3, 0.3, 20.0])
def test_scalar_against_the_recurrence(key_dim: int, value_dim: int, has_state: bool, rate: float) -> None:
    page = page_of(key_dim, value_dim, has_state=has_state, rate=rate)
    outputs, _, end_state = run(page, "scalar")
    start = np.zeros(page.dims) if page.state is None else page.state.astype(np.float64)
    q, k, v, beta = (x.astype(np.float64) for x in (page.queries, page.keys, page.values, page.betas))
    steps = np.diff(page.decays.astype(np.float64), prepend=0.0) * np.log(2)
    wanted, wanted_end = recurrence(q, k, v, beta, steps, start)
    # Columns are by themselves. A token's change of a column is no larger than the column and its values, and no step
    # makes an error larger. Each token's sums have key_dim and PAGE terms, whose roundings are independent.
    size = np.linalg.norm(start, axis=0) + np.linalg.norm(v, axis=0)
    bound = np.sqrt((key_dim + PAGE) * PAGE) * EPSILON * size
    assert (np.abs(outputs - wanted) < bound * key_dim**-0.5).all()
    assert (np.abs(end_state - wanted_end) < bound).all()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("key_dim", "value_dim"), SHAPES)
@pytest.mark.parametrize("rate", [0.1, 20.0])
def test_tiers_agree_bit_for_bit(tier: str, key_dim: int, value_dim: int, rate: float) -> None:
    for has_state in (True, False):
        page = page_of(key_dim, value_dim, has_state=has_state, rate=rate)
        for cuts in ((0, PAGE), (0, 1, 2, 5, 9, 32), (0, 13)):
            assert all(map(same_bits, run(page, tier, cuts), run(page, "scalar", cuts)))


def same_bits(a: F32, b: F32) -> bool:
    return np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_a_page_is_the_same_however_it_is_cut(tier: str) -> None:
    page = page_of(32, 48)
    whole = run(page, tier)
    for cut in range(1, PAGE):
        assert all(map(same_bits, run(page, tier, (0, cut, PAGE)), whole))
    assert all(map(same_bits, run(page, tier, tuple(range(PAGE + 1))), whole))


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize(("shape", "ends"), some(SHAPES, [(0, 32), (3, 4), (10, 21), (31, 32)]))
def test_nothing_else_is_written(tier: str, shape: tuple[int, int], ends: tuple[int, int]) -> None:
    (key_dim, value_dim), (begin, end) = shape, ends
    page = page_of(key_dim, value_dim)
    mine, count = slice(begin, end), end - begin
    rows = np.ascontiguousarray(np.concatenate([page.queries[mine], page.keys[mine], page.values[mine]], 1))
    framed = [np.full((size + 2, value_dim), 7.0, np.float32) for size in (PAGE, count, key_dim)]
    changes, outputs, end_state = (each[1:-1] for each in framed)
    keys = np.ascontiguousarray(page.keys.T)
    testing.delta_page(page.state, keys, changes, page.decays, page.betas[mine], rows, outputs, end_state, begin, tier)
    written = [slice(1 + begin, 1 + end), slice(1, -1), slice(1, -1) if end == PAGE else slice(0)]
    for values, place in zip(framed, written, strict=True):
        untouched = np.delete(values, place, 0)
        assert (untouched == 7.0).all()
        assert (values[place] != 7.0).all()


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_no_state_is_a_state_of_zeros(tier: str) -> None:
    page = page_of(16, 32, has_state=False)
    zeros = replace(page, state=np.zeros((16, 32), np.float32))
    assert all(map(same_bits, run(page, tier), run(zeros, tier)))


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_nan_stays_in_what_it_belongs_to(tier: str) -> None:
    """A column of values has its own sums; tokens before have none of it."""
    page = page_of(16, 32)
    values = page.values.copy()
    values[10, 5] = np.nan
    outputs, changes, end_state = run(replace(page, values=values), tier)
    for rows in (outputs, changes):
        assert np.isnan(rows[10:, 5]).all()
        assert np.isfinite(rows[:10]).all()
        assert np.isfinite(np.delete(rows, 5, 1)).all()
    assert np.isnan(end_state[:, 5]).all()
    assert np.isfinite(np.delete(end_state, 5, 1)).all()


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize(("channels", "taps"), some([1, 16, 24, 100, 128], [1, 2, 4, 8]))
def test_convolution(tier: str, taps: int, channels: int) -> None:
    rng = np.random.default_rng(taps)
    x = rng.standard_normal((taps - 1 + 20, channels)).astype(np.float32)
    weights = rng.standard_normal((taps, channels)).astype(np.float32)

    def convolve(tier: str, cuts: tuple[int, ...]) -> F32:
        parts = []
        for begin, end in pairwise(cuts):
            rows = x[taps - 1 + begin : taps - 1 + end].copy()
            testing.convolve_silu(rows, x[begin : begin + taps - 1].copy(), weights, tier)
            parts.append(rows)
        return np.concatenate(parts)

    found = convolve(tier, (0, 20))
    assert np.array_equal(found, convolve("scalar", (0, 20)))
    assert np.array_equal(found, convolve(tier, (0, 1, 3, 10, 20)))
    # The rows before are the history, so of the reference only those count that have one.
    wanted = convolved(x.astype(np.float64), weights.T.astype(np.float64))[taps - 1 :]
    sizes = sum(np.abs(x[i : i + 20].astype(np.float64) * weights[i]) for i in range(taps))
    # SiLU's slope is at most 1.1; its own roundings are 6 units of its result.
    assert (np.abs(found - wanted) <= EPSILON * (1.1 * taps * sizes + 6 * np.abs(wanted))).all()


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize("n", [1, 8, 15, 16, 100, 128, 256])
def test_l2_norm(tier: str, n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    found, scalar = x.copy(), x.copy()
    testing.l2_normalize(found, 0.25, tier)
    testing.l2_normalize(scalar, 0.25, "scalar")
    assert np.array_equal(found, scalar)
    wide = x.astype(np.float64)
    wanted = wide * 0.25 / np.sqrt(np.square(wide).sum() + 1e-6)
    assert (np.abs(found - wanted) <= (n / 64 + 12) * EPSILON * np.abs(wanted)).all()
    zeros = np.zeros(n, np.float32)
    testing.l2_normalize(zeros, 1.0, tier)
    assert not zeros.any()


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize("n", [1, 15, 16, 33, 256])
def test_gates(tier: str, n: int) -> None:
    rng = np.random.default_rng(n)
    gate, x = (10 * rng.standard_normal(n)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    found, scalar = x.copy(), x.copy()
    testing.gate_by_sigmoid(gate, found, tier)
    testing.gate_by_sigmoid(gate, scalar, "scalar")
    assert np.array_equal(found, scalar)
    wanted = x * sigmoid(gate.astype(np.float64))
    assert (np.abs(found - wanted) <= 6 * EPSILON * np.abs(wanted)).all()
    extremes = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30], np.float32)
    ones = np.ones(5, np.float32)
    testing.gate_by_sigmoid(extremes, ones, tier)
    assert np.isnan(ones[2])
    assert np.allclose(np.delete(ones, 2), [1, 0, 1, 0])
