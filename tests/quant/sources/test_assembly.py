"""Every way in which stored rows become the engine's, floats and codes, and what does not fit."""

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.codes.dequantize import dequantize
from quant.codes.int4 import quantize_asym_int4, quantize_sym_int4
from quant.codes.int8 import quantize_int8
from quant.codes.matrix import F32, QuantizedMatrix
from quant.errors import SourceError, TensorError
from quant.families.family import Piece, Tensor
from quant.sources.assembly import assemble
from quant.sources.source import SourceTensor, StoredType

COLS = 64
REVERSED: NDArray[np.int64] = np.arange(95, -1, -1)


def values(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def floats(name: str, array: F32, stored: StoredType = "bf16") -> SourceTensor:
    flat = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array
    return SourceTensor(name, array.shape, stored, 0, lambda begin, end: flat[begin:end])


def codes(name: str, matrix: QuantizedMatrix, shape: tuple[int, ...] | None = None) -> SourceTensor:
    def read(begin: int, end: int) -> QuantizedMatrix:
        minima = None if matrix.minima is None else matrix.minima[begin:end]
        return QuantizedMatrix(
            matrix.type, matrix.group, matrix.codes[begin:end], matrix.scales[begin:end], minima, matrix.table
        )

    return SourceTensor(name, shape or matrix.codes.shape, matrix.type, matrix.group, read, label="Q4")


def one(stored: Mapping[str, SourceTensor], pieces: tuple[Piece, ...], rows: int) -> SourceTensor:
    return assemble(stored, {"x": Tensor("linear", (rows, COLS), pieces)}, (), "file")["x"]


def read(tensor: SourceTensor, step: int | None = None) -> F32:
    rows = tensor.shape[0]
    parts = [tensor.read(begin, min(begin + (step or rows), rows)) for begin in range(0, rows, step or rows)]
    return np.concatenate([dequantize(each) if isinstance(each, QuantizedMatrix) else each for each in parts])


FUSED = values(96, COLS)
STACK = values(3, 64, COLS, seed=1)
CASES: Mapping[str, tuple[tuple[Piece, ...], F32]] = {
    "whole": ((Piece("fused"),), FUSED),
    "two slices, exchanged": ((Piece("fused", slice(32, 96)), Piece("fused", slice(0, 32))), np.roll(FUSED, -32, 0)),
    "a permutation": ((Piece("fused", REVERSED),), FUSED[::-1]),
    "every second row": (
        (Piece("fused", slice(0, None, 2)), Piece("fused", slice(1, None, 2))),
        np.concatenate([FUSED[::2], FUSED[1::2]]),
    ),
    "scaled": ((Piece("fused", scale=0.5),), FUSED * np.float32(0.5)),
    "scaled and moved": ((Piece("fused", scale=2.0, offset=1.0),), FUSED * 2 + 1),
}


@pytest.mark.parametrize("step", [None, 7, 32])
@pytest.mark.parametrize("case", CASES)
def test_rows_of_floats(case: str, step: int | None) -> None:
    pieces, expected = CASES[case]
    tensor = one({"fused": floats("fused", FUSED)}, pieces, 96)
    assert np.array_equal(read(tensor, step), expected)
    assert tensor.stored == ("fp32" if case.startswith("scaled") else "bf16")


@pytest.mark.parametrize("quantize", [quantize_sym_int4, quantize_asym_int4, quantize_int8])
@pytest.mark.parametrize("case", CASES)
def test_codes_are_kept_where_rows_move_or_a_scale_multiplies(case: str, quantize: object) -> None:
    pieces, _ = CASES[case]
    matrix = quantize("fused", FUSED, 32)  # type: ignore[operator]
    exact = dequantize(matrix)
    expected = one({"fused": floats("fused", exact)}, pieces, 96)
    tensor = one({"fused": codes("fused", matrix)}, pieces, 96)
    assert np.array_equal(read(tensor, 32), read(expected)), "halving and doubling is exact"
    keeps = case != "scaled and moved"
    assert isinstance(tensor.read(0, 32), QuantizedMatrix) == keeps
    assert (tensor.stored, tensor.group) == ((matrix.type, 32) if keeps else (tensor.stored, 0))
    assert tensor.rounded_scales == (case == "scaled")


@pytest.mark.parametrize("step", [None, 7])
@pytest.mark.parametrize("quantize", [quantize_sym_int4, quantize_asym_int4, quantize_int8])
def test_columns_move(quantize: object, step: int | None) -> None:
    """Groups of columns with their codes and scales; other columns as values."""
    halves = np.concatenate([np.arange(32, 64), np.arange(32)])
    matrix = quantize("fused", FUSED, 32)  # type: ignore[operator]
    exact = dequantize(matrix)
    for cols, keeps in ((halves, True), (halves[::-1].copy(), False), (np.roll(halves, 1), False)):
        tensor = one({"fused": codes("fused", matrix)}, (Piece("fused", REVERSED, cols=cols),), 96)
        assert (isinstance(tensor.read(0, 9), QuantizedMatrix), tensor.group) == (keeps, 32 if keeps else 0)
        assert np.array_equal(read(tensor, step), exact[::-1][:, cols])
        plain = one({"fused": floats("fused", FUSED)}, (Piece("fused", cols=cols, scale=0.5),), 96)
        assert np.array_equal(read(plain, step), FUSED[:, cols] * np.float32(0.5))
        assert one({"fused": floats("fused", FUSED)}, (Piece("fused", cols=cols),), 96).stored == "bf16"


@pytest.mark.parametrize("step", [None, 5])
def test_stacks_and_matrices_with_inputs_first(step: int | None) -> None:
    stored = {"stack": floats("stack", STACK)}
    halves = tuple(Piece("stack", slice(0, 32), index=i) for i in range(3))
    others = tuple(Piece("stack", slice(32, 64), index=i) for i in range(3))
    made = assemble(
        stored, {"a": Tensor("linear", (96, COLS), halves, 3), "b": Tensor("linear", (96, COLS), others, 3)}, (), "f"
    )
    assert np.array_equal(read(made["a"], step), STACK[:, :32].reshape(96, COLS))
    assert np.array_equal(read(made["b"], step), STACK[:, 32:].reshape(96, COLS))
    assert np.array_equal(read(one(stored, (Piece("stack"),), 192), step), STACK.reshape(192, COLS))
    turned = {"turned": floats("turned", np.ascontiguousarray(STACK.swapaxes(1, 2)))}
    pieces = tuple(
        Piece("turned", slice(half, None, 2), index=i, transposed=True) for half in range(2) for i in range(3)
    )
    expected = np.concatenate([STACK[:, ::2].reshape(-1, COLS), STACK[:, 1::2].reshape(-1, COLS)])
    assert np.array_equal(read(one(turned, pieces, 192), step), expected)
    assert one(turned, pieces, 192).stored == "bf16"


@pytest.mark.parametrize("step", [None, 5])
def test_some_inputs_of_each_row(step: int | None) -> None:
    """Of a turned matrix, as heads' keys are made of latents; and of one that is stored as the engine has it."""
    stored = {"turned": floats("turned", np.ascontiguousarray(FUSED.T)), "wide": floats("wide", np.tile(FUSED, 2))}
    heads = tuple(Piece("turned", slice(0, 24), transposed=True, cols=slice(begin, begin + 32)) for begin in (0, 32))
    rest = tuple(Piece("turned", slice(24, 96), transposed=True, cols=slice(begin, begin + 32)) for begin in (0, 32))
    made = assemble(
        stored,
        {
            "a": Tensor("linear", (48, 32), heads, 2),
            "b": Tensor("linear", (144, 32), rest, 2),
            "c": Tensor("linear", (96, COLS), (Piece("wide", cols=slice(COLS, 2 * COLS)),)),
            "d": Tensor("linear", (96, COLS), (Piece("wide", cols=slice(0, COLS)),)),
        },
        (),
        "f",
    )
    assert np.array_equal(read(made["a"], step), np.concatenate([FUSED[:24, :32], FUSED[:24, 32:]]))
    assert np.array_equal(read(made["b"], step), np.concatenate([FUSED[24:, :32], FUSED[24:, 32:]]))
    assert np.array_equal(read(made["c"], step), FUSED)
    assert made["a"].stored == "bf16"
    codes_of = {"fused": codes("fused", quantize_sym_int4("fused", FUSED, 32))}
    pieces = (Piece("fused", cols=slice(0, 32)), Piece("fused", cols=slice(32, 64)))
    cut = assemble(codes_of, {"x": Tensor("linear", (192, 32), pieces)}, (), "f")["x"]
    exact = dequantize(quantize_sym_int4("fused", FUSED, 32))
    assert np.array_equal(read(cut, step), np.concatenate([exact[:, :32], exact[:, 32:]]))
    assert cut.group == 32, "whole groups keep their codes"
    halves = (Piece("fused", cols=slice(16, 48)), Piece("fused", cols=slice(0, 32)))
    half = assemble(codes_of, {"x": Tensor("linear", (192, 32), halves)}, (), "f")["x"]
    assert np.array_equal(read(half, step), np.concatenate([exact[:, 16:48], exact[:, :32]]))
    assert half.group == 0, "others don't"


def test_pieces_of_different_types_are_read_as_floats() -> None:
    four, eight = quantize_sym_int4("four", FUSED, 32), quantize_int8("eight", FUSED, 64)
    stored = {"four": codes("four", four), "eight": codes("eight", eight)}
    tensor = one(stored, (Piece("four"), Piece("eight")), 192)
    assert (tensor.stored, tensor.group) == ("other_fine", 0)
    assert np.array_equal(read(tensor, 64), np.concatenate([dequantize(four), dequantize(eight)]))
    other = {"four": codes("four", four), "eight": codes("eight", quantize_sym_int4("eight", FUSED, 64))}
    assert one(other, (Piece("four"), Piece("eight")), 192).stored == "other"


def test_vectors() -> None:
    bias, norm, gate = values(3, 4), values(5, seed=2), values(1, 6, seed=3)
    stored = {"bias": floats("bias", bias), "norm": floats("norm", norm), "gate": floats("gate", gate)}
    log, taps = values(3, seed=4), values(2, 1, 2, seed=5)
    stored |= {"log": floats("log", log), "taps": floats("taps", taps)}
    made = assemble(
        stored,
        {
            "even": Tensor("vector", (6,), tuple(Piece("bias", slice(0, None, 2), index=i) for i in range(3))),
            "odd": Tensor("vector", (6,), tuple(Piece("bias", slice(1, None, 2), index=i) for i in range(3))),
            "norm": Tensor("vector", (5,), (Piece("norm", offset=1.0),)),
            "gate": Tensor("vector", (6,), (Piece("gate"),)),
            "power": Tensor("vector", (3,), (Piece("log", np.array([2, 0, 1]), scale=-1.0, exponential=True),)),
            "taps": Tensor("vector", (4,), (Piece("taps", np.array([2, 3, 0, 1])),)),
        },
        (),
        "f",
    )
    assert np.array_equal(read(made["even"]), bias[:, ::2].reshape(-1))
    assert np.array_equal(read(made["odd"]), bias[:, 1::2].reshape(-1))
    assert np.array_equal(read(made["norm"]), norm + 1)
    assert np.array_equal(read(made["gate"]), gate[0])
    assert np.array_equal(read(made["power"]), -np.exp(log)[[2, 0, 1]])
    assert np.array_equal(read(made["taps"]), taps.reshape(-1)[[2, 3, 0, 1]])


@pytest.mark.parametrize(
    ("pieces", "rows", "message"),
    [
        ((Piece("gone"),), 96, "lacks the tensor 'gone'"),
        ((Piece("fused"),), 64, "has the shape .96, 64., the configuration says .64, 64."),
        ((Piece("fused", slice(0, 64)),), 64, "more than the configuration says"),
        ((Piece("fused", slice(64, 128)),), 32, "less than the configuration says"),
        ((Piece("fused", np.array([96])),), 1, "less than the configuration says"),
        ((Piece("fused", cols=np.arange(1, 65)),), 96, "less than the configuration says"),
        ((Piece("fused", cols=slice(64, 128)),), 96, "less than the configuration says"),
        ((Piece("fused", index=96),), 1, "no part 96"),
        ((Piece("vector"),), 8, "has the shape .8,., the configuration says .8, 64."),
        ((Piece("vector", transposed=True),), 8, "has the shape .8,., the configuration says .8, 64."),
    ],
)
def test_what_does_not_fit_is_named(pieces: tuple[Piece, ...], rows: int, message: str) -> None:
    stored = {"fused": floats("fused", FUSED), "vector": floats("vector", values(8))}
    with pytest.raises((SourceError, TensorError), match=message):
        assemble(stored, {"x": Tensor("linear", (rows, COLS), pieces)}, ("vector",), "file")


def test_what_nothing_uses_is_an_error_unless_it_may_be_ignored() -> None:
    stored = {"fused": floats("fused", FUSED), "a.inv_freq": floats("a.inv_freq", values(8))}
    tensors = {"x": Tensor("linear", (96, COLS), (Piece("fused"),))}
    assert set(assemble(stored, tensors, ("*.inv_freq",), "file")) == {"x"}
    with pytest.raises(SourceError, match=r"file: has the tensor 'a.inv_freq', which a model of this configuration"):
        assemble(stored, tensors, (), "file")


def test_a_quantized_vector_is_refused() -> None:
    stored = {"v": codes("v", quantize_int8("v", values(1, COLS), 32))}
    with pytest.raises(SourceError, match=r"the vector 'v' is quantized .Q4."):
        assemble(stored, {"x": Tensor("vector", (COLS,), (Piece("v"),))}, (), "file")
