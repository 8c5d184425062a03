"""Log probabilities and divergences from logits, some rows at a time, without another array of that size.

fp32 differences and exponentials, sums in fp64. Knows no model.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class Divergence:
    """Per token: KL divergence of a model from the baseline, in nats, and whether their most likely tokens agree."""

    kl: F64
    agree: NDArray[np.bool_]


def log_probabilities(logits: F32, targets: I64) -> F64:
    """The natural logarithm of each row's probability of its target: [n] of logits [n, vocab], targets [n]."""
    result = np.empty(len(targets))
    for begin in range(0, len(targets), _ROWS):
        rows = logits[begin : begin + _ROWS]
        shifted = rows - rows.max(-1, keepdims=True)
        chosen = targets[begin : begin + _ROWS]
        result[begin : begin + _ROWS] = shifted[np.arange(len(rows)), chosen].astype(np.float64) - _log_sum(shifted)
    return result


def divergence(baseline: F32, logits: F32) -> Divergence:
    """KL(baseline || model) of each row of two arrays of logits [n, vocab]."""
    kl = np.empty(len(logits))
    for begin in range(0, len(logits), _ROWS):
        rows = logits[begin : begin + _ROWS]
        base_rows = baseline[begin : begin + _ROWS]
        base, ours = (part - part.max(-1, keepdims=True) for part in (base_rows, rows))
        weights = np.exp(base)
        mean = (weights * (base - ours)).sum(-1, dtype=np.float64) / weights.sum(-1, dtype=np.float64)
        kl[begin : begin + _ROWS] = mean - _log_sum(base) + _log_sum(ours)
    # Exactly zero for equal logits; rounding may make it slightly negative.
    return Divergence(np.maximum(kl, 0), baseline.argmax(-1) == logits.argmax(-1))


def _log_sum(shifted: F32) -> F64:
    return np.asarray(np.log(np.exp(shifted).sum(-1, dtype=np.float64)))
