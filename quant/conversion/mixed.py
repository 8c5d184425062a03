"""Mixed precision: chooses which of the layers' matrices get more bits, under a budget of bits per weight.

A pass over the unquantized model measures how much rounding the matrices that share an input changes the layer's
output. The budget is spent where it removes most of that error. Does not know how codes are chosen later, nor files.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from quant.calibration.block import BlockShape, attend, attention_input, block, block_shape, gated, linear, mlp_input
from quant.calibration.whole_layers import ReadTensor
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, IntegerType
from quant.errors import QuantError
from quant.families.description import Decoder
from quant.methods.problem import MatrixProblem, Rounding
from quant.methods.rounding import round_to_nearest
from quant.packed.packed_matrix import MatrixInfo

UNITS: Final = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Matrices of one layer that share their input. The engine needs one group size for them, so they are stored alike."""

Unit = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to store a unit's matrices, with its error and its size."""

    rounding: Rounding
    bits: float
    """Size of all the unit's matrices together."""
    error: float
    """Mean over tokens of |change|^2 / |output|^2, for the layer's output."""


def bits_per_weight(kind: IntegerType, group: int) -> float:
    """Bits of one weight's code and of its share of the scale and minimum."""
    return (8 if kind == "int8" else 4) + (32 if kind == "asym_int4" else 16) / group


def layer_options(
    number: int, decoder: Decoder, vectors: Mapping[str, F32], read: ReadTensor, x: F32, base: Rounding
) -> tuple[dict[Unit, tuple[Option, ...]], F32]:
    """The options of every unit, under the full names of its matrices and cheapest first, and the layer's output.

    x: the layer's input [windows, tokens, hidden]. Options are the 4-bit type and table of `base` in
    groups of 128, 64 and 32, and int8 in groups of 64, as far as they divide the inputs. The error of only one option
    is measured at the layer's output; those of the others are scaled from it by their weights' errors, each input's
    weighted with its power.
    """
    prefix = f"model.layers.{number}."
    weights = {name.removeprefix(prefix): values for name, values in vectors.items() if name.startswith(prefix)}
    weights |= {f"{name}.weight": read(f"{prefix}{name}.weight") for unit in UNITS for name in unit}
    shape = block_shape(decoder, x.shape[1])
    exact = block(x, weights, shape)
    size = np.einsum("...i,...i->...", exact, exact) + np.float32(1e-30)
    powers = input_powers(x, weights, shape)
    options: dict[Unit, tuple[Option, ...]] = {}
    for unit, power in zip(UNITS, powers, strict=True):
        originals = {f"{name}.weight": weights[f"{name}.weight"] for name in unit}
        kinds = _kinds(base, len(power))
        weighted = []
        middle = max(0, len(kinds) // 2 - 1)
        for place, kind in enumerate(kinds):
            rounded = {name: _rounded(name, values, kind) for name, values in originals.items()}
            squares = (np.square(rounded[name] - values).sum(0) for name, values in originals.items())
            weighted.append(float(sum(squares) @ power))
            if place == middle:
                changed = block(x, {**weights, **rounded}, shape) - exact
                error = float(np.mean(np.einsum("...i,...i->...", changed, changed) / size))
        per_unit = error / weighted[middle] if weighted[middle] else 0.0
        count = sum(values.size for values in originals.values())
        options[tuple(prefix + name for name in originals)] = tuple(
            Option(kind, count * bits_per_weight(kind.type, kind.group), each * per_unit)
            for kind, each in zip(kinds, weighted, strict=True)
        )
    return options, exact


def allocate(options: Mapping[Unit, tuple[Option, ...]], weights: int, bits: float) -> dict[str, Rounding]:
    """Chooses an option for every unit: all together take at most `bits` a weight, with the least error.

    weights: how many all the units' matrices have. Greedy along each unit's convex hull: the next step is the one that
    removes most error for its bits. Returns each matrix' rounding by full name. Raises QuantError where even the
    cheapest options take more.
    """
    hulls = {unit: _hull(each) for unit, each in options.items()}
    chosen = dict.fromkeys(hulls, 0)
    left = bits * weights - sum(hull[0].bits for hull in hulls.values())
    if left < -1e-6 * weights:
        least = sum(hull[0].bits for hull in hulls.values()) / weights
        raise QuantError(f"bits {bits:g}: the layers take at least {least:.3f} bits a weight")
    queue = [(-_gain(hull, 0), unit) for unit, hull in hulls.items() if len(hull) > 1]
    heapq.heapify(queue)
    while queue:
        _, unit = heapq.heappop(queue)
        hull, at = hulls[unit], chosen[unit]
        cost = hull[at + 1].bits - hull[at].bits
        if cost > left:
            continue  # a smaller step of another unit may still fit
        left -= cost
        chosen[unit] = at + 1
        if at + 2 < len(hull):
            heapq.heappush(queue, (-_gain(hull, at + 1), unit))
    return {name: hull[chosen[unit]].rounding for unit, hull in hulls.items() for name in unit}


def with_roundings(infos: Mapping[str, MatrixInfo], roundings: Mapping[str, Rounding]) -> dict[str, MatrixInfo]:
    """The plan with the types, groups and tables of those matrices replaced."""
    changed = dict(infos)
    for name, rounding in roundings.items():
        info = infos[name]
        changed[name] = MatrixInfo(rounding.type, info.rows, info.cols, rounding.group, rounding.table, info.count)
    return changed


def _kinds(base: Rounding, inputs: int) -> list[Rounding]:
    kinds = [replace(base, group=group) for group in (128, 64, 32) if inputs % group == 0]
    return kinds + [Rounding("int8", group, None) for group in (64, 32) if inputs % group == 0][:1]


def input_powers(x: F32, weights: Mapping[str, F32], shape: BlockShape) -> list[F32]:
    """Mean square of every input over the tokens of x [windows, tokens, hidden], fp32 [inputs] for each of UNITS."""
    normed = attention_input(x, weights, shape)
    context = attend(normed, weights, shape)
    normed_mlp = mlp_input(x + linear(context, weights, "self_attn.o_proj"), weights, shape)
    inputs = (normed, context, normed_mlp, gated(normed_mlp, weights))
    return [np.square(each).reshape(-1, each.shape[-1]).mean(0) for each in inputs]


def _rounded(name: str, values: F32, rounding: Rounding) -> F32:
    return dequantize(round_to_nearest(MatrixProblem(name, values, rounding)))


def _hull(options: tuple[Option, ...]) -> list[Option]:
    """The options on the lower convex hull: ascending bits, descending error, descending gain a bit."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda each: (each.bits, each.error)):
        if hull and option.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _slope(small: Option, large: Option) -> float:
    return (small.error - large.error) / (large.bits - small.bits)


def _gain(hull: list[Option], at: int) -> float:
    return _slope(hull[at], hull[at + 1])
