"""Rotary angles in NumPy: the cosines and sines of every position, as the engine computes them.

Does not know how frequencies follow from a configuration (`quant.families.rope`), nor what is rotated.
"""

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32
from quant.families.description import DynamicRope, Rope

F64 = NDArray[np.float64]


def rotary_angles(rope: Rope, positions: int) -> tuple[F32, F32]:
    """Cosines and sines, fp32 [positions, rotary_dim / 2] each, times the scaling's attention factor."""
    is_long = rope.long_frequencies is not None and positions > rope.short_positions
    frequencies = np.array(rope.long_frequencies if is_long else rope.frequencies, np.float64)
    factor = rope.long_attention_factor if is_long else rope.attention_factor
    by_position = np.tile(frequencies, (positions, 1))
    if rope.dynamic is not None and positions > rope.dynamic.trained_positions:
        by_position[rope.dynamic.trained_positions :] = _grown(rope.dynamic, rope.rotary_dim, positions)
    angles = np.arange(positions, dtype=np.float64)[:, None] * by_position
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def _grown(dynamic: DynamicRope, dim: int, positions: int) -> F64:
    """Dynamic NTK angles: past the trained length a position uses the frequencies of a sequence that ends with it."""
    trained = dynamic.trained_positions
    lengths = np.arange(trained + 1, positions + 1, dtype=np.float64)
    thetas = dynamic.theta * (dynamic.factor * lengths / trained - (dynamic.factor - 1)) ** (dim / (dim - 2))
    return np.asarray(thetas[:, None] ** (-2.0 * np.arange(dim // 2) / dim)[None])
