import itertools

import numpy as np
import pytest

from quant.calibration.block import block, block_shape
from quant.conversion.mixed import UNITS, Option, Unit, allocate, layer_options
from quant.errors import QuantError
from quant.families.registry import describe
from quant.methods.problem import Rounding
from tests.kernels.tiny_model import LLAMA, random_tensors


def choices(seed: int, matrices: int) -> dict[Unit, tuple[Option, ...]]:
    """Convex options: each step costs more and buys less for its bits."""
    generator = np.random.default_rng(seed)
    options: dict[Unit, tuple[Option, ...]] = {}
    for number in range(matrices):
        bits = np.cumsum(generator.integers(1, 4, 3)) + 4.0
        gains = -np.sort(-generator.random(2)) * np.diff(bits)
        errors = 2 - np.concatenate([[0], np.cumsum(gains)])
        options[(f"m{number}",)] = tuple(
            Option(Rounding("sym_int4", group, None), float(b) * 10, float(e))
            for group, b, e in zip((128, 64, 32), bits, errors, strict=True)
        )
    return options


@pytest.mark.parametrize("seed", range(6))
def test_the_budget_is_kept_and_well_spent(seed: int) -> None:
    options = choices(seed, 5)
    weights = 50
    bits = 7.5
    chosen = allocate(options, weights, bits)
    by_name = {unit: next(o for o in each if o.rounding == chosen[unit[0]]) for unit, each in options.items()}
    assert sum(option.bits for option in by_name.values()) <= bits * weights + 1e-6
    error = sum(option.error for option in by_name.values())
    fitting = (
        sum(option.error for option in each)
        for each in itertools.product(*options.values())
        if sum(option.bits for option in each) <= bits * weights
    )
    best = min(fitting)
    largest_step = max(a.error - b.error for each in options.values() for a, b in itertools.pairwise(each))
    assert best <= error <= best + largest_step  # greedy is off by at most the step that did not fit


def test_more_bits_never_err_more() -> None:
    options = choices(9, 6)
    errors = []
    for bits in (6.5, 7.0, 8.0, 9.0, 20.0):
        chosen = allocate(options, 60, bits)
        errors.append(sum(o.error for unit, each in options.items() for o in each if o.rounding == chosen[unit[0]]))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(sum(min(o.error for o in each) for each in options.values()))


def test_an_option_that_a_mixture_beats_is_left_out() -> None:
    options: dict[Unit, tuple[Option, ...]] = {
        ("a", "b"): (
            Option(Rounding("sym_int4", 128, None), 4.0, 1.0),
            Option(Rounding("sym_int4", 64, None), 5.0, 0.99),
            Option(Rounding("sym_int4", 32, None), 6.0, 0.1),
        )
    }
    assert allocate(options, 1, 5.5)["a"].group == 128
    assert allocate(options, 1, 6.0) == dict.fromkeys(("a", "b"), Rounding("sym_int4", 32, None))


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(QuantError, match=r"bits 4: the layers take at least \d"):
        allocate(choices(0, 3), 30, 4)


def test_options_of_a_layer() -> None:
    raw = {**LLAMA, "hidden_size": 128, "intermediate_size": 192}
    decoder = describe(raw, "test")
    tensors = random_tensors(raw)
    vectors = {name: values for name, values in tensors.items() if values.ndim == 1}
    x = np.random.default_rng(0).standard_normal((2, 16, 128)).astype(np.float32)
    options, y = layer_options(0, decoder, vectors, lambda name: tensors[name], x, Rounding("sym_int4", 64, None))
    prefix = "model.layers.0."
    weights = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
    assert np.array_equal(y, block(x, weights, block_shape(decoder, 16)))
    assert list(options) == [tuple(f"{prefix}{name}.weight" for name in unit) for unit in UNITS]
    kinds = [(option.rounding.type, option.rounding.group) for option in options[(f"{prefix}mlp.down_proj.weight",)]]
    assert kinds == [("sym_int4", 64), ("sym_int4", 32), ("int8", 64)]  # 192 inputs are not a multiple of 128
    for each in options.values():
        assert [option.bits for option in each] == sorted(option.bits for option in each)
        assert len(each) in (3, 4)
        assert each[0].error > each[-2].error > 50 * each[-1].error > 0
