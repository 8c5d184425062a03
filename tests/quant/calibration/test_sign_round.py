from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from quant.calibration.block import BlockShape, block, block_shape
from quant.calibration.sign_round import sign_round_layer
from quant.calibration.whole_layers import MATRICES
from quant.codes.dequantize import dequantize
from quant.codes.lut4 import NF4
from quant.codes.matrix import F32, IntegerType, QuantizedMatrix
from quant.errors import TensorError
from quant.families.registry import describe
from quant.methods.problem import MatrixProblem, Rounding
from quant.methods.rounding import round_to_nearest
from tests.kernels.tiny_model import LLAMA, random_tensors


def layer() -> tuple[dict[str, F32], F32, BlockShape]:
    decoder = describe(LLAMA, "test")
    prefix = "model.layers.0."
    weights = {n.removeprefix(prefix): v for n, v in random_tensors(LLAMA).items() if n.startswith(prefix)}
    x = np.random.default_rng(0).standard_normal((8, 24, 64)).astype(np.float32)
    return weights, x, block_shape(decoder, 24)


def error(weights: Mapping[str, F32], rounded: Mapping[str, QuantizedMatrix], x: F32, shape: BlockShape) -> float:
    values = {name: dequantize(matrix) for name, matrix in rounded.items()}
    return float(np.square(block(x, {**weights, **values}, shape) - block(x, weights, shape)).mean())


@pytest.mark.parametrize("kind", ["sym_int4", "asym_int4"])
def test_it_errs_less_than_rounding_to_nearest(kind: IntegerType) -> None:
    weights, x, shape = layer()
    rounding = Rounding(kind, 32, None)
    plain = {name: round_to_nearest(MatrixProblem(name, weights[name], rounding)) for name in MATRICES}
    y = block(x, weights, shape)
    tuned = sign_round_layer(weights, dict.fromkeys(MATRICES, rounding), x, y, shape, steps=100)
    assert error(weights, tuned, x, shape) < 0.6 * error(weights, plain, x, shape)


@pytest.mark.parametrize("kind", ["sym_int4", "asym_int4"])
def test_it_begins_at_rounding_to_nearest(kind: IntegerType) -> None:
    weights, x, shape = layer()
    rounding = Rounding(kind, 32, None)
    found = sign_round_layer(weights, {MATRICES[0]: rounding}, x, block(x, weights, shape), shape, steps=0)
    plain = round_to_nearest(MatrixProblem("test", weights[MATRICES[0]], rounding))
    errors = [float(np.square(dequantize(each) - weights[MATRICES[0]]).mean()) for each in (found[MATRICES[0]], plain)]
    assert errors[0] < 1.1 * errors[1]


def test_only_what_has_a_rounding_is_tuned() -> None:
    weights, x, shape = layer()
    name = MATRICES[6]
    y = block(x, weights, shape)
    assert list(sign_round_layer(weights, {name: Rounding("sym_int4", 32, None)}, x, y, shape, steps=1)) == [name]


def test_what_it_can_not_do_is_refused_by_name() -> None:
    weights, x, shape = layer()
    name = MATRICES[0]
    with pytest.raises(TensorError, match=r"q_proj.*signround knows sym_int4 and asym_int4, not lut4"):
        sign_round_layer(weights, {name: Rounding("lut4", 32, NF4)}, x, x, shape)
    bad = {**weights, name: weights[name] * np.float32(np.nan)}
    with pytest.raises(TensorError, match=r"q_proj.*holds NaN or infinite"):
        sign_round_layer(bad, {name: replace(Rounding("sym_int4", 32, None))}, x, x, shape)
