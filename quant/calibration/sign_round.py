"""SignRound: all roundings and scales of a layer tuned together, by signed gradient descent on the layer's output.

A weight becomes s * clip(round((w - m) / s + v)) + m with v in -1/2..1/2 and s its group's scale times a factor in
1/2..1. Both start at rounding to nearest and move by the sign of their gradients, with a step size that falls to zero.
The error is the difference between the layer's output, for its inputs in the quantized model, and the unquantized
model's output. Gradients pass straight through the rounding. Source: Cheng et al. 2023, "Optimize Weight Rounding via
Signed Gradient Descent for the Quantization of LLMs". Knows neither files nor other layers.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from quant.calibration.block import BlockShape, Weights, block, block_gradients
from quant.codes.matrix import F32, QuantizedMatrix
from quant.errors import TensorError
from quant.methods.grids import assembled, reciprocal, rounded_to_fp16
from quant.methods.problem import MatrixProblem, Rounding

STEPS: Final = 200
BATCH_WINDOWS: Final = 2
_SEED: Final = 0


class _Tuned:
    """A matrix being tuned: blocks [rows, groups, inputs], scales and factors [rows, groups]."""

    def __init__(self, problem: MatrixProblem) -> None:
        self.rounding = problem.rounding
        if self.rounding.type not in ("sym_int4", "asym_int4"):
            raise TensorError(problem.name, f"signround knows sym_int4 and asym_int4, not {self.rounding.type}")
        self._blocks = problem.blocks()
        high, low = self._blocks.max(-1), self._blocks.min(-1)
        self._least, self._most = (-8, 7) if self.rounding.type == "sym_int4" else (0, 15)
        if self.rounding.type == "sym_int4":
            self._scales, self._minima = np.where(high > -low, high, low) / np.float32(-8), np.zeros_like(low)
        else:
            self._scales, self._minima = (high - low) / np.float32(15), rounded_to_fp16(low)
        self.offsets = np.zeros_like(self._blocks)
        self.factors = np.ones_like(self._scales)

    def state(self) -> tuple[F32, F32]:
        """Returns copies of the offsets and factors."""
        return self.offsets.copy(), self.factors.copy()

    def values(self) -> F32:
        """The fp32 matrix with the current offsets and factors."""
        scales, _, levels = self._rounded()
        values: F32 = scales[..., None] * levels + self._minima[..., None]
        return values.reshape(len(levels), -1)

    def step(self, gradient: F32, size: float) -> None:
        """Moves offsets and factors by the signs of their gradients; `gradient` is that of the values."""
        scales, wanted, levels = self._rounded()
        pull = gradient.reshape(self._blocks.shape)
        inside = (wanted > self._least - 0.5) & (wanted < self._most + 0.5)
        # d value / d scale is level - w / s inside, and the level where it is clipped.
        slope = levels - np.where(inside, wanted - self.offsets, np.float32(0))
        self.factors -= np.float32(size) * np.sign((pull * slope).sum(-1) * self._scales)
        np.clip(self.factors, np.float32(0.5), np.float32(1), out=self.factors)
        self.offsets -= np.float32(size) * np.sign(pull * scales[..., None]) * inside
        np.clip(self.offsets, np.float32(-0.5), np.float32(0.5), out=self.offsets)

    def matrix(self, state: tuple[F32, F32]) -> QuantizedMatrix:
        """Makes the quantized matrix of a state."""
        self.offsets, self.factors = state
        scales, _, levels = self._rounded()
        codes = (levels - np.float32(self._least)).astype(np.uint8).reshape(len(levels), -1)
        return assembled(self.rounding, codes, scales, self._minima)

    def _rounded(self) -> tuple[F32, F32, F32]:
        """Returns the scales as stored, (w - m) / s + v, and the latter rounded and clipped."""
        scales = rounded_to_fp16(self._scales * self.factors)
        wanted = (self._blocks - self._minima[..., None]) * reciprocal(scales)[..., None] + self.offsets
        return scales, wanted, np.clip(np.rint(wanted), np.float32(self._least), np.float32(self._most))


def sign_round_layer(
    weights: Weights, roundings: Mapping[str, Rounding], x: F32, y: F32, shape: BlockShape, steps: int = STEPS
) -> dict[str, QuantizedMatrix]:
    """Quantizes those of a layer's matrices that have a rounding, by short name ("mlp.up_proj.weight").

    weights: all the layer's weights by short name; those without a rounding do not change. x: the layer's inputs in the
    quantized model; y: its outputs in the unquantized model, both [windows, tokens, hidden]. The result is that of the
    step with the least loss on its batch.

    Raises TensorError for weights that are not finite, and for types other than sym_int4 and asym_int4.
    """
    tuned = {name: _Tuned(MatrixProblem(name, weights[name], rounding)) for name, rounding in roundings.items()}
    generator = np.random.Generator(np.random.PCG64(_SEED))
    size = float(np.mean(np.square(y), dtype=np.float64)) or 1.0
    best, least = {name: each.state() for name, each in tuned.items()}, np.inf
    for step in range(steps):
        batch = generator.choice(len(x), min(BATCH_WINDOWS, len(x)), replace=False)
        batch.sort()
        now = {**weights, **{name: each.values() for name, each in tuned.items()}}
        off = block(x[batch], now, shape) - y[batch]
        loss = float(np.mean(np.square(off), dtype=np.float64)) / size
        if loss < least:
            best, least = {name: each.state() for name, each in tuned.items()}, loss
        _, gradients = block_gradients(x[batch], now, shape, off)
        for name, each in tuned.items():
            each.step(gradients[name], (1 - step / steps) / steps)
    return {name: each.matrix(best[name]) for name, each in tuned.items()}
