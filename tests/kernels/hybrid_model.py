"""Models with layers of Gated DeltaNet, made on the spot."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import WeightType
from quant.families.description import Attention, Decoder, DeltaNet, Layer, Mlp
from tests.kernels.tiny_model import F32, described_tensors, write_described

F64 = NDArray[np.float64]

DELTA = DeltaNet(key_heads=2, value_heads=4, key_dim=16, value_dim=32)
ATTENTION = Attention(32**-0.5, rope=None, output_gate=True)
HYBRID = Decoder(
    vocab_size=96, hidden_size=64, max_positions=2048, heads=2, kv_heads=1, head_dim=32,
    kinds=(Layer(delta=DELTA, mlp=Mlp(96)), Layer(ATTENTION, Mlp(96))), layers=(0, 0, 1, 0),
)  # fmt: skip


def with_delta(delta: DeltaNet) -> Decoder:
    """HYBRID with another delta."""
    return replace(HYBRID, kinds=(replace(HYBRID.kinds[0], delta=delta), HYBRID.kinds[1]))


def hybrid_tensors(decoder: Decoder, seed: int = 0) -> dict[str, F32]:
    """Random weights whose states forget neither at once nor never."""
    tensors, rng = described_tensors(decoder, seed), np.random.default_rng(seed)
    for name, values in tensors.items():
        if name.endswith(".decay"):
            tensors[name] = np.exp(rng.normal(-1.0, 1.0, values.shape)).astype(np.float32)
        if name.endswith(".decay_bias"):
            tensors[name] = rng.normal(-1.0, 1.0, values.shape).astype(np.float32)
    return tensors


def write_hybrid(folder: Path, decoder: Decoder = HYBRID, kind: WeightType = "fp32", seed: int = 0) -> Path:
    """A packed hybrid of random weights; returns the folder."""
    return write_described(folder, decoder, {}, hybrid_tensors(decoder, seed), kind)


def tokens(count: int, seed: int = 0) -> list[int]:
    """Random tokens of such a model."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, HYBRID.vocab_size, count)]


def tensors_of_layer(tensors: Mapping[str, F32], layer: int) -> dict[str, F32]:
    """By their names within the layer."""
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def sigmoid(x: F64) -> F64:
    return np.asarray(1 / (1 + np.exp(-x)))


def rms_norm(x: F64, weight: F64, epsilon: float = 1e-6) -> F64:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight)


def convolved(x: F64, weights: F64) -> F64:
    """SiLU of a causal convolution by channel: x [tokens, channels], weights [channels, taps]."""
    taps = weights.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    sums = np.sum([padded[i : i + len(x)] * weights[:, i] for i in range(taps)], axis=0)
    return np.asarray(sums * sigmoid(sums))


def recurrence(q: F64, k: F64, v: F64, beta: F64, decay: F64, state: F64) -> tuple[F64, F64]:
    """Outputs [tokens, value_dim] of one value head token by token, and the state behind them. decay: g, natural."""
    outputs = np.zeros_like(v)
    for t in range(len(v)):
        state = state * np.exp(decay[t])
        state = state + np.outer(k[t], beta[t] * (v[t] - state.T @ k[t]))
        outputs[t] = state.T @ q[t]
    return outputs, state


def delta_reference(delta: DeltaNet, tensors: Mapping[str, F32], x: F32) -> F64:
    """What a layer of Gated DeltaNet adds to rows x of a new sequence, in double precision."""
    weights = {name: values.astype(np.float64) for name, values in tensors.items()}
    normed = rms_norm(x.astype(np.float64), weights["input_layernorm.weight"])

    def linear(name: str) -> F64:
        return np.asarray(normed @ weights[f"delta.{name}_proj.weight"].T)

    rows = convolved(linear("qkv"), weights["delta.conv.weight"].reshape(delta.channels, delta.taps))
    keys = delta.key_heads * delta.key_dim
    q, k = (rows[:, i * keys : (i + 1) * keys].reshape(len(x), delta.key_heads, delta.key_dim) for i in (0, 1))
    q, k = (each / np.sqrt(np.square(each).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
    v = rows[:, 2 * keys :].reshape(len(x), delta.value_heads, delta.value_dim)
    decay = -weights["delta.decay"] * np.log1p(np.exp(linear("decay") + weights["delta.decay_bias"]))
    beta, heads = sigmoid(linear("beta")), np.zeros_like(v)
    for head in range(delta.value_heads):
        of_key = head // (delta.value_heads // delta.key_heads)
        start = np.zeros((delta.key_dim, delta.value_dim))
        heads[:, head], _ = recurrence(
            q[:, of_key] * delta.key_dim**-0.5, k[:, of_key], v[:, head], beta[:, head], decay[:, head], start
        )
    gate = linear("gate").reshape(v.shape)
    gated = rms_norm(heads, weights["delta.norm.weight"]) * gate * sigmoid(gate)
    return np.asarray(gated.reshape(len(x), -1) @ weights["delta.output_proj.weight"].T)
