"""The choice of codes: every tier against the scalar one, and that against the formulas in NumPy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from quant.codes.lut4 import NF4
from tests.sizes import some

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
LEVELS = {
    "sym_int4": np.arange(-8, 8, dtype=np.float32),
    "asym_int4": np.arange(16, dtype=np.float32),
    "lut4": np.array(NF4, np.float32),
}


def arrays(levels: F32, inputs: int, rows: int, candidates: int) -> dict[str, F32]:
    generator = np.random.default_rng(inputs * rows)
    weights = generator.standard_normal((inputs, rows)).astype(np.float32)
    widths = np.linspace(0.5, 1.1, candidates, dtype=np.float32)[:, None] * np.abs(weights).max(0)
    minima = -widths if levels[0] == 0 else np.zeros_like(widths)
    widths[-1, ::7] = 0  # a group of zeros has a scale of 0
    return {
        "weights": weights,
        "wanted": weights + 0.1 * generator.standard_normal((inputs, rows)).astype(np.float32),
        "feedback": np.tril(0.1 * generator.standard_normal((inputs, inputs)), -1).astype(np.float32),
        "power": generator.random(inputs, np.float32) + np.float32(0.1),
        "scales": widths * 2 / np.float32(levels[-1] - levels[0]),
        "minima": minima,
    }


def round_group(
    given: dict[str, F32], levels: F32, tier: str | None
) -> tuple[NDArray[np.uint8], F32, NDArray[np.int32]]:
    weights, wanted, feedback, power, scales, minima = (
        given[name] for name in ("weights", "wanted", "feedback", "power", "scales", "minima")
    )
    return _native.round_group(weights, wanted, feedback, power, scales, minima, levels, tier)


def nearest(x: NDArray[np.float64], levels: F32) -> NDArray[np.intp]:
    codes: NDArray[np.intp] = np.abs(x[..., None] - levels.astype(np.float64)).argmin(-1)
    return codes


def rounded(given: dict[str, F32], levels: F32, candidate: int) -> tuple[NDArray[np.intp], F64, F64]:
    """In float64, one input after the other."""
    exact = {name: array.astype(np.float64) for name, array in given.items()}
    scale, minimum = exact["scales"][candidate], exact["minima"][candidate]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    errors = np.zeros_like(exact["weights"])
    codes: NDArray[np.intp] = np.zeros(errors.shape, np.intp)
    total: F64 = np.zeros(errors.shape[1])
    for k in range(len(errors)):
        moved = exact["wanted"][k] + exact["feedback"][k] @ errors
        codes[k] = nearest((moved - minimum) * inverse, levels)
        values = scale * levels[codes[k]] + minimum
        errors[k] = exact["weights"][k] - values
        total += exact["power"][k] * (moved - values) ** 2
    return codes, errors, total


@pytest.mark.parametrize("kind", LEVELS)
def test_codes_are_those_of_the_formula(kind: str) -> None:
    levels = LEVELS[kind]
    given = arrays(levels, 32, 50, 5)
    codes, errors, best = round_group(given, levels, "scalar")
    totals = np.stack([rounded(given, levels, candidate)[2] for candidate in range(5)])
    chosen = totals[best[0], np.arange(50)]
    assert (chosen <= totals.min(0) * (1 + 1e-4)).all()
    different = 0
    for candidate in range(5):
        mine = best[0] == candidate
        wanted_codes, wanted_errors, _ = rounded(given, levels, candidate)
        same = (codes[:, mine] == wanted_codes[:, mine]).all(0)
        different += int((~same).sum())
        off = np.abs(errors[:, mine][:, same] - wanted_errors[:, mine][:, same])
        assert off.max(initial=0) < 1e-5
    assert different <= 1  # fp32 may break a tie, and what follows differs


@pytest.mark.parametrize(("size", "kind"), some([(64, 37, 18), (32, 16, 25), (1, 1, 1), (96, 100, 4)], [*LEVELS]))
@pytest.mark.parametrize("tier", _native.available_tiers())
def test_tiers_agree(tier: str, kind: str, size: tuple[int, int, int]) -> None:
    inputs, rows, candidates = size
    levels = LEVELS[kind]
    given = arrays(levels, inputs, rows, candidates)
    wanted, found = round_group(given, levels, "scalar"), round_group(given, levels, tier)
    assert all(np.array_equal(found[i], wanted[i]) for i in range(3))
    mixing = given["feedback"] + np.eye(inputs, dtype=np.float32)
    arguments = (wanted[0], given["wanted"] - given["weights"], mixing @ mixing.T, given["scales"][0])
    descended = [_native.descend_group(*arguments, given["minima"][0], levels, each) for each in (tier, "scalar")]
    assert all(np.array_equal(descended[0][i], descended[1][i]) for i in range(2))


@pytest.mark.parametrize("kind", LEVELS)
def test_a_descent_sets_each_input_to_its_best_code(kind: str) -> None:
    levels = LEVELS[kind]
    given = arrays(levels, 16, 20, 1)
    start = np.full((16, 20), 5, np.uint8)
    mixing = given["feedback"].astype(np.float64) + np.eye(16)
    own, scale, minimum = mixing @ mixing.T, given["scales"][0].astype(np.float64), given["minima"][0]
    pull = given["wanted"].astype(np.float64)
    codes, changes = _native.descend_group(
        start, given["wanted"], own.astype(np.float32), given["scales"][0], minimum, levels
    )
    for k in range(16):
        for row in range(20):
            if scale[row] == 0:
                assert changes[k, row] == 0
                continue
            moves = scale[row] * (levels - levels[start[k, row]])
            costs = own[k, k] * moves**2 - 2 * moves * pull[k, row]
            assert costs[codes[k, row]] <= costs.min() + 1e-4
        pull -= own[:, k, None] * changes[k]


def test_arrays_that_do_not_fit_are_refused() -> None:
    levels = LEVELS["sym_int4"]
    given = arrays(levels, 32, 8, 3)
    for name, wrong in (
        ("wanted", given["wanted"][:16]),
        ("feedback", given["feedback"][:, :31].copy()),
        ("power", given["power"][:31]),
        ("scales", given["scales"][:0]),
        ("minima", given["minima"][:2]),
    ):
        with pytest.raises(ValueError, match=name):
            round_group({**given, name: wrong}, levels, None)
    with pytest.raises(ValueError, match="rising"):
        round_group(given, levels[::-1].copy(), None)
    with pytest.raises(ValueError, match=r"codes: not in 0\.\.15"):
        _native.descend_group(
            np.full((32, 8), 16, np.uint8), given["wanted"], given["feedback"], given["scales"][0], given["minima"][0],
            levels,
        )  # fmt: skip
