"""FP8 rounding of the error of keys and values, against ml_dtypes'."""

import numpy as np
from ml_dtypes import float8_e4m3fn

from bench.experiments.kv_error import to_e4m3, to_integers


def test_fp8_is_that_of_ml_dtypes() -> None:
    x = np.random.default_rng(0).normal(0, 60, (3, 2, 400)).astype(np.float32)
    x[..., :4] = 448, 0.001, 0, -0.0137  # the scale is 1; below 2^-6 steps are even
    np.testing.assert_array_equal(
        to_e4m3(x.clip(-448, 448), (2,)), x.clip(-448, 448).astype(float8_e4m3fn).astype(np.float32)
    )


def test_fp8_errs_more_than_int8_where_values_are_alike() -> None:
    x = np.random.default_rng(1).normal(0, 1, (64, 4, 64)).astype(np.float32)
    fp8, int8 = (np.linalg.norm(one - x) for one in (to_e4m3(x, (2,)), to_integers(x, (2,))))
    assert 2 < fp8 / int8 < 10
    assert not to_e4m3(np.zeros_like(x), (2,)).any()
