"""Rotary angles in NumPy: the cosines and sines of every position, for all scalings that the engine supports.

The formulas are those of the kernels' rope_angles.cc, which names their sources; angles are computed in double
precision. Reads a completed config (`sources.model_config`); does not know what is rotated.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32

F64 = NDArray[np.float64]


def rotary_angles(config: Mapping[str, Any], positions: int) -> tuple[F32, F32]:
    """Cosines and sines, fp32 [positions, head_dim / 2] each, times the scaling's attention factor."""
    dim, theta = int(config["head_dim"]), float(config["rope_theta"])
    scaling: Mapping[str, Any] = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", "default")
    frequencies = np.tile(_base(theta, dim), (positions, 1))
    factor = 1.0
    if kind == "linear":
        frequencies /= float(scaling["factor"])
    elif kind == "dynamic":
        frequencies = _dynamic(config, scaling, positions)
    elif kind == "llama3":
        frequencies[:] = _llama3(config, scaling, frequencies[0])
    elif kind == "yarn":
        trained = float(scaling.get("original_max_position_embeddings") or config["max_position_embeddings"])
        stretch = float(scaling.get("factor") or config["max_position_embeddings"] / trained)
        frequencies[:] = _yarn(scaling, frequencies[0], dim, theta, trained, stretch)
        factor = _yarn_attention_factor(scaling, stretch)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def _base(theta: float, dim: int) -> F64:
    return theta ** (-2.0 * np.arange(dim // 2) / dim)


def _dynamic(config: Mapping[str, Any], scaling: Mapping[str, Any], positions: int) -> F64:
    """Each position has the frequencies of a sequence that ends with it."""
    trained, dim = float(config["max_position_embeddings"]), int(config["head_dim"])
    lengths = np.arange(1, positions + 1, dtype=np.float64)
    growth = np.maximum(float(scaling["factor"]) * lengths / trained - (float(scaling["factor"]) - 1), 1.0)
    thetas = float(config["rope_theta"]) * np.where(lengths > trained, growth ** (dim / (dim - 2)), 1.0)
    return np.asarray(thetas[:, None] ** (-2.0 * np.arange(dim // 2) / dim)[None])


def _llama3(config: Mapping[str, Any], scaling: Mapping[str, Any], frequencies: F64) -> F64:
    trained = float(scaling.get("original_max_position_embeddings") or config["max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    blend = np.clip((trained * frequencies / (2 * math.pi) - low) / (high - low), 0, 1)
    return frequencies * ((1 - blend) / float(scaling["factor"]) + blend)


def _yarn(scaling: Mapping[str, Any], frequencies: F64, dim: int, theta: float, trained: float, stretch: float) -> F64:
    def pair_of(turns: float) -> float:
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(_number(scaling, "beta_fast", 32.0)), pair_of(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0, 1)
    return np.asarray(frequencies * (ramp / stretch + (1 - ramp)))


def _yarn_attention_factor(scaling: Mapping[str, Any], stretch: float) -> float:
    def temperature(mscale: float) -> float:
        return 1.0 if stretch <= 1 else 0.1 * mscale * math.log(stretch) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    mscale, mscale_all = _number(scaling, "mscale", 0.0), _number(scaling, "mscale_all_dim", 0.0)
    return temperature(mscale) / temperature(mscale_all) if mscale and mscale_all else temperature(1.0)


def _number(scaling: Mapping[str, Any], key: str, default: float) -> float:
    value = scaling.get(key)
    return default if value is None else float(value)
