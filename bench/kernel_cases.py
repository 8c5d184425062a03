"""The matrices with which the linear kernels are tested and timed, and their random weights.

Knows the packed layout's limits through `kernels._native` only. Values are random: neither results nor speed may depend
on what they are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels import _native

INTEGER_TYPES = ("sym_int4", "asym_int4", "lut4", "int8")
FLOAT_TYPES = ("fp16", "bf16", "fp32")


@dataclass(frozen=True, slots=True)
class LinearCase:
    """A weight matrix: `rows` outputs, `cols` inputs, a scale for each `group` inputs (0 for floats)."""

    weight_type: str
    rows: int
    cols: int
    group: int

    @property
    def name(self) -> str:
        return f"{self.weight_type}-{self.rows}x{self.cols}" + (f"-g{self.group}" if self.group else "")

    @property
    def is_integer(self) -> bool:
        """Whether int8 and bf16 activations can be multiplied by it."""
        return self.weight_type in INTEGER_TYPES


@dataclass(frozen=True, slots=True)
class Weights:
    """The contents of a packed matrix: codes, scales, minima and a table (integers), or values (floats)."""

    packed: NDArray[np.uint8]  # [tiles, tile_bytes]
    codes: NDArray[np.uint8] | None = None  # [rows, cols]
    scales: NDArray[np.float16] | None = None  # [rows, cols // group]
    minima: NDArray[np.float16] | None = None  # [rows, cols // group], asym_int4
    table: tuple[int, ...] | None = None  # the values of lut4's 16 codes
    values: NDArray[np.float32] | None = None  # [rows, cols]


# Outputs that fill no tile, half a tile, or many; inputs of one group up to a 7B model's; every group size.
_ODD_SHAPES = (
    (1, 32, 32),
    (31, 64, 64),
    (33, 128, 128),
    (96, 192, 32),
    (576, 576, 64),
    (960, 256, 128),
    (33, 1536, 32),
    (289, 4128, 32),
    (17, 11008, 64),
    (31, 11008, 128),
)
_ODD_FLOAT_SHAPES = ((1, 2, 0), (31, 34, 0), (33, 130, 0), (160, 576, 0), (17, 4096, 0))

ODD_CASES = tuple(LinearCase(weight_type, *shape) for weight_type in INTEGER_TYPES for shape in _ODD_SHAPES) + tuple(
    LinearCase(weight_type, *shape) for weight_type in FLOAT_TYPES for shape in _ODD_FLOAT_SHAPES
)
ODD_CASES += (LinearCase("fp16", 33, 131, 0),)  # bf16 alone takes pairs of inputs

# Layers of widely used models: SmolLM2-135M, TinyLlama-1.1B, Llama-2-7B.
MODEL_CASES = (
    LinearCase("sym_int4", 1536, 576, 64),
    LinearCase("sym_int4", 2048, 5632, 64),
    LinearCase("sym_int4", 4096, 4096, 64),
    LinearCase("sym_int4", 4096, 11008, 64),
    LinearCase("sym_int4", 4096, 4096, 32),
    LinearCase("sym_int4", 4096, 4096, 128),
    LinearCase("asym_int4", 4096, 4096, 64),
    LinearCase("lut4", 4096, 4096, 64),
    LinearCase("asym_int4", 1536, 576, 32),
    LinearCase("asym_int4", 576, 1536, 32),
    LinearCase("asym_int4", 576, 576, 32),
    LinearCase("int8", 4096, 4096, 64),
    LinearCase("int8", 4096, 4096, 128),
    LinearCase("int8", 49152, 576, 32),
    LinearCase("fp16", 4096, 4096, 0),
    LinearCase("fp16", 2048, 5632, 0),
    LinearCase("bf16", 2048, 5632, 0),
    LinearCase("fp32", 2048, 2048, 0),
)


def matrix_of(case: LinearCase, weights: Weights) -> _native.PackedMatrix:
    """The packed weights as the kernels take them."""
    return _native.PackedMatrix(weights.packed, case.weight_type, case.rows, case.cols, case.group, table=weights.table)


def code_values(weights: Weights, weight_type: str) -> NDArray[np.int64]:
    """The integers [rows, cols] of the codes, before scale and minimum."""
    assert weights.codes is not None
    if weights.table is not None:
        return np.array(weights.table)[weights.codes]
    zero_point = {"sym_int4": 8, "asym_int4": 0, "int8": 128}[weight_type]
    return weights.codes.astype(np.int64) - zero_point


def make_weights(case: LinearCase, rng: np.random.Generator) -> Weights:
    """Random weights of a case, packed. All codes occur, the extreme ones often."""
    shape = (case.rows, case.cols)
    if not case.is_integer:
        values = rng.standard_normal(shape, dtype=np.float32)
        return Weights(_native.pack_float(values, case.weight_type), values=values)
    lowest, highest = (1, 255) if case.weight_type == "int8" else (0, 15)
    codes = rng.integers(lowest, highest + 1, shape, dtype=np.uint8)
    codes[rng.random(shape, dtype=np.float32) < 0.1] = lowest
    codes[rng.random(shape, dtype=np.float32) < 0.1] = highest
    groups = (case.rows, case.cols // case.group)
    scales = rng.uniform(-0.1, 0.1, groups).astype(np.float16)
    if case.weight_type == "int8":
        return Weights(_native.pack_int8(codes, scales), codes, scales)
    minima = rng.uniform(-1.0, 1.0, groups).astype(np.float16) if case.weight_type == "asym_int4" else None
    table = (-127, 127, *rng.integers(-127, 128, 14).tolist()) if case.weight_type == "lut4" else None
    return Weights(_native.pack_int4(codes, scales, minima), codes, scales, minima, table=table)
