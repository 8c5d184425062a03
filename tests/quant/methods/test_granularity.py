import numpy as np
import pytest

from quant.codes.matrix import IntegerType
from quant.errors import TensorError
from quant.methods.granularity import Extent, round_coarsely, storage_group
from quant.methods.problem import MatrixProblem, Rounding
from quant.methods.rounding import round_to_nearest
from tests.quant.methods.problems import error, problem

KINDS: tuple[IntegerType, ...] = ("sym_int4", "asym_int4", "lut4", "int8")


@pytest.mark.parametrize("kind", KINDS)
def test_one_scale_a_row_or_a_matrix(kind: IntegerType) -> None:
    asked = problem(kind)
    channel, tensor = (round_coarsely(asked, extent) for extent in ("channel", "tensor"))
    assert channel.scales.shape == tensor.scales.shape == (96, 3)
    assert (channel.scales == channel.scales[:, :1]).all()
    assert len(np.unique(channel.scales)) > 20
    assert len(np.unique(tensor.scales)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_coarser_scales_err_more(kind: IntegerType) -> None:
    asked = problem(kind)
    plain = np.eye(192, dtype=np.float32)
    errors = [error(round_to_nearest(asked), asked, plain)]
    extents: tuple[Extent, ...] = ("channel", "tensor")
    errors += [error(round_coarsely(asked, extent), asked, plain) for extent in extents]
    assert errors == sorted(errors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_one_group_is_what_a_group_is(kind: IntegerType) -> None:
    asked = problem(kind, cols=64)
    fine, coarse = round_to_nearest(asked), round_coarsely(asked, "channel")
    assert np.array_equal(fine.codes, coarse.codes)
    assert np.array_equal(fine.scales, coarse.scales)


def test_the_group_that_stores_them() -> None:
    assert [storage_group("test", cols) for cols in (256, 192, 96)] == [128, 64, 32]
    with pytest.raises(TensorError, match="'test': last dimension 80"):
        storage_group("test", 80)


def test_what_is_not_finite_is_refused_by_name() -> None:
    asked = MatrixProblem("test", np.full((2, 64), np.nan, np.float32), Rounding("sym_int4", 64, None))
    with pytest.raises(TensorError, match="'test': holds NaN"):
        round_coarsely(asked, "tensor")
