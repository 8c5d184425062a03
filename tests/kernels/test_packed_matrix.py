"""The packed matrix that Python hands to the kernels: checked once, and its bytes live as long as it does."""

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

from bench.kernel_cases import LinearCase, make_weights, matrix_of
from kernels import _native
from kernels._native import testing

CASE = LinearCase("lut4", 40, 64, 32)


class Bytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that can be referred to weakly."""


def test_it_says_what_it_is() -> None:
    weights = make_weights(CASE, np.random.default_rng(0))
    matrix = matrix_of(CASE, weights)
    assert (matrix.weight_type, matrix.rows, matrix.cols, matrix.group) == ("lut4", 40, 64, 32)
    assert matrix.table == weights.table
    assert matrix.nbytes == weights.packed.nbytes
    floats = _native.PackedMatrix(_native.pack_float(np.ones((2, 4), np.float32), "bf16"), "bf16", 2, 4, 0)
    assert floats.table is None


def test_it_keeps_its_bytes() -> None:
    weights = make_weights(CASE, np.random.default_rng(0))
    packed = weights.packed.view(Bytes)
    alive = weakref.ref(packed)
    matrix = _native.PackedMatrix(packed, "lut4", 40, 64, 32, table=weights.table)
    expected = matrix.dequantize()
    del packed
    gc.collect()
    assert alive() is not None
    assert np.array_equal(matrix.dequantize("scalar"), expected)
    del matrix
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight_type": "int3"}, "unknown weight type 'int3'"),
        ({"rows": 0}, "rows: 0"),
        ({"rows": 65}, "packed: "),
        ({"cols": 63}, "cols: 63 is not a multiple"),
        ({"group": 16}, "group: 16"),
        ({"table": None}, "table: 0 entries, not 16"),
        ({"table": [128] * 16}, "table: 128 is not"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    weights = make_weights(CASE, np.random.default_rng(0))
    arguments: dict[str, Any] = {"weight_type": "lut4", "rows": 40, "cols": 64, "group": 32, "table": weights.table}
    with pytest.raises(ValueError, match=reason):
        _native.PackedMatrix(weights.packed, **arguments | changes)


@pytest.mark.parametrize("change", ["dtype", "dimensions", "order"])
def test_other_arrays_are_refused(change: str) -> None:
    weights = make_weights(CASE, np.random.default_rng(0))
    packed = {
        "dtype": weights.packed.view(np.int8), "dimensions": weights.packed[0], "order": weights.packed[:, ::2]
    }[change]  # fmt: skip
    with pytest.raises(TypeError):
        _native.PackedMatrix(packed, "lut4", 40, 64, 32, table=weights.table)


def test_multiplying_needs_an_aligned_matrix() -> None:
    weights = make_weights(CASE, np.random.default_rng(0))
    memory = np.empty(weights.packed.nbytes + 65, np.uint8)
    start = -memory.ctypes.data % 64 + 1
    moved = memory[start : start + weights.packed.nbytes].reshape(weights.packed.shape)
    moved[:] = weights.packed
    matrix = _native.PackedMatrix(moved, "lut4", 40, 64, 32, table=weights.table)
    assert np.array_equal(matrix.dequantize(), matrix_of(CASE, weights).dequantize())
    with pytest.raises(ValueError, match="packed: not aligned to 64 bytes"):
        _native.LinearRunner(1).run(matrix, np.ones((1, 64), np.float32), np.empty((1, 40), np.float32))


@pytest.mark.parametrize(
    "other", [LinearCase("lut4", 96, 64, 32), LinearCase("lut4", 64, 96, 32), LinearCase("lut4", 64, 64, 64),
              LinearCase("int8", 64, 64, 32)], ids=lambda case: case.name
)  # fmt: skip
def test_gate_and_up_must_be_alike(other: LinearCase) -> None:
    case = LinearCase("lut4", 64, 64, 32)
    gate, up = (matrix_of(each, make_weights(each, np.random.default_rng(0))) for each in (case, other))
    rounded = testing.round_rows(np.ones((1, 64), np.float32), "scalar")
    with pytest.raises(ValueError, match="up: not of the gate's type, shape and group"):
        testing.gate_up_bf16(gate, up, rounded, 1, "scalar", out_cols=64)


def test_gate_and_up_have_tables_of_their_own() -> None:
    """What the scalar tier gives for two matrices is SiLU and product of what it gives for each."""
    case = LinearCase("lut4", 64, 64, 32)
    rng = np.random.default_rng(1)
    gate, up = (matrix_of(case, make_weights(case, rng)) for _ in range(2))
    assert gate.table != up.table
    rounded = testing.round_rows(rng.standard_normal((3, 64), np.float32), "scalar")
    products = np.empty((2, 3, 64), np.float32)
    for matrix, product in zip((gate, up), products, strict=True):
        testing.linear_bf16(matrix, rounded, product, "scalar")
    expected = testing.round_rows(testing.activate("silu", products[0], products[1], "scalar"), "scalar")
    assert np.array_equal(testing.gate_up_bf16(gate, up, rounded, 3, "scalar", out_cols=64), expected)


def test_a_torch_layer_can_be_copied_and_given_other_weights() -> None:
    torch = pytest.importorskip("torch")
    from quant.transformers_bridge.torch_linear import PackedLinear, pack_weight

    first, second = (pack_weight("w", torch.randn(40, 64), "sym_int4", 32) for _ in range(2))
    layer, other = (PackedLinear(packed, 40, 64, "sym_int4", 32, None) for packed in (first, second))
    x = torch.randn(3, 64)
    expected, others = layer(x), other(x)
    assert not torch.equal(expected, others)
    assert torch.equal(copy.copy(layer)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), expected)
    layer.packed = second
    assert torch.equal(layer(x), others)
    layer.load_state_dict({"packed": first})  # in place
    assert torch.equal(layer(x), expected)
