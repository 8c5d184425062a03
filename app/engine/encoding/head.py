"""What is made of a text's final hidden states: the pooled vector, layers behind it, and its length 1.

In fp32, with NumPy: it takes a thousandth of the time of the layers before. Knows no model and no tokens.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """activation(weight x + bias)."""

    weight: F32
    """[rows, cols]."""
    bias: F32 | None
    """[rows]."""
    is_tanh: bool


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """As the packed file's description has it (quant/families/description.py, Encoder)."""

    pooling: Literal["mean", "first", "last"]
    normalized: bool
    dense: tuple[DenseLayer, ...] = ()
    scores: bool = False
    """Whether its one number is a reranker's logit."""

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
            pooled = pooled @ layer.weight.T
            if layer.bias is not None:
                pooled += layer.bias
            if layer.is_tanh:
                np.tanh(pooled, out=pooled)
        if self.normalized:
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), np.float32(1e-12))
        return np.ascontiguousarray(pooled, np.float32)
