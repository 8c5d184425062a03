import numpy as np
import pytest

from quant.codes.lut4 import NF4
from quant.codes.matrix import IntegerType
from quant.methods.problem import DAMPING, Rounding, damped


def test_damping_is_in_proportion_to_what_most_inputs_do() -> None:
    """Not to the mean, which a few strong ones decide."""
    powers = np.full(64, 2.0, np.float32)
    powers[:3] = 50.0
    added = damped(np.diag(powers)) - np.diag(powers)
    assert np.allclose(added, DAMPING * 2.0 * np.eye(64), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strongest", [1e2, 1e6, 1e12])
def test_what_is_damped_can_be_inverted(strongest: float) -> None:
    """In fp32: one input may be all there is, and others may never have been other than zero."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 64)).astype(np.float32)
    x[:, 0] *= np.float32(np.sqrt(strongest))
    x[:, 5] = 0
    moments = x.T @ x / np.float32(len(x))
    assert np.isfinite(np.linalg.cholesky(damped(moments))).all()


def test_inputs_that_were_always_zero_are_left_as_they_are() -> None:
    assert np.array_equal(damped(np.zeros((4, 4), np.float32)), np.eye(4, dtype=np.float32))


@pytest.mark.parametrize(("kind", "table"), [("lut4", None), ("sym_int4", NF4), ("int8", NF4)])
def test_a_table_belongs_to_lut4_and_lut4_to_a_table(kind: IntegerType, table: tuple[int, ...] | None) -> None:
    with pytest.raises(ValueError, match=f"{kind} with(out)? a table"):
        Rounding(kind, 64, table)
