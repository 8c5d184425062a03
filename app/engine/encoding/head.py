"""What is made of a text's final hidden states: the pooled vector, layers behind it, and its length 1.

In fp32, with NumPy: it takes a thousandth of the time of the layers before. Knows no model and no tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def _gelu(x: F32) -> F32:
    """x times the normal distribution's integral up to x.

    Abramowitz and Stegun 7.1.26: the error function within 1.5e-7, as NumPy has none.
    """
    half = np.abs(x.astype(np.float64)) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * half)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    upper = 0.5 * series * np.exp(-half * half)
    result: F32 = (x * np.where(x < 0, upper, 1.0 - upper)).astype(np.float32)
    return result


def _silu(x: F32) -> F32:
    result: F32 = (x / (1.0 + np.exp(-x.astype(np.float64)))).astype(np.float32)
    return result


ACTIVATIONS: Final[Mapping[str, Callable[[F32], F32]]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "gelu": _gelu,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "silu": _silu,
}
"""By the description's names (quant/families/description.py, HeadActivation)."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """norm(activation(weight x + bias))."""

    weight: F32
    """[rows, cols]."""
    bias: F32 | None
    """[rows]."""
    activation: Callable[[F32], F32] = ACTIVATIONS["identity"]
    norm: F32 | None = None
    """[rows], the weight of a LayerNorm."""
    norm_epsilon: float = 0.0

    def of(self, x: F32) -> F32:
        """Returns [texts, rows] of [texts, cols]."""
        y = x @ self.weight.T
        if self.bias is not None:
            y += self.bias
        y = self.activation(y)
        if self.norm is None:
            return y
        centred = y - y.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        result: F32 = centred / np.sqrt(variance + np.float32(self.norm_epsilon)) * self.norm
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """As the packed file's description has it (quant/families/description.py, Encoder)."""

    pooling: Literal["mean", "first", "last"]
    normalized: bool
    dense: tuple[DenseLayer, ...] = ()
    scores: bool = False
    """Whether its one number is a reranker's logit, which of two numbers is their difference."""

    def of(self, hidden: F32, lengths: NDArray[np.int32]) -> F32:
        """Returns [texts, size] of final hidden states [tokens, hidden] of texts of these lengths."""
        ends = np.cumsum(lengths)
        pooled: F32
        if self.pooling == "mean":
            sums: F32 = np.add.reduceat(hidden, ends - lengths, axis=0)
            pooled = (sums / lengths[:, np.newaxis]).astype(np.float32)
        else:
            pooled = hidden[ends - 1 if self.pooling == "last" else ends - lengths]
        for layer in self.dense:
            pooled = layer.of(pooled)
        if self.scores and pooled.shape[1] == 2:
            pooled = pooled[:, :1] - pooled[:, 1:]
        if self.normalized:
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), np.float32(1e-12))
        return np.ascontiguousarray(pooled, np.float32)
