"""One transformer layer of the Llama family in NumPy, fp32: forward in the steps that calibration needs, and backward.

Activations are [windows, tokens, width]; every window begins at position 0. Weights come as a mapping of the layer's
own names ("self_attn.q_proj.weight", ...). Knows neither files nor quantization.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from quant.calibration.rope import rotary_angles
from quant.codes.matrix import F32
from quant.families.description import Attention, Decoder, Layer, Mlp

Weights = Mapping[str, F32]

_QUERY_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The shape of a model's layers. cosines, sines: fp32 [tokens, head_dim / 2]."""

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    cosines: F32
    sines: F32


def block_shape(decoder: Decoder, tokens: int) -> BlockShape:
    """Returns the shape of a model's layers, for windows of at most `tokens`. The model must be `is_computed`."""
    cosines, sines = rotary_angles(decoder.ropes[0], tokens)
    return BlockShape(decoder.heads, decoder.kv_heads, decoder.head_dim, decoder.norm_epsilon, cosines, sines)


def is_computed(decoder: Decoder, tokens: int) -> bool:
    """Whether this module implements the described model, for windows of at most `tokens`."""
    plain = Decoder(
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        max_positions=decoder.max_positions,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        kinds=decoder.kinds,
        layers=decoder.layers,
        ropes=decoder.ropes[:1],
        norm_epsilon=decoder.norm_epsilon,
        tied_head=decoder.tied_head,
    )
    if decoder != plain or [rope.rotary_dim for rope in decoder.ropes] != [decoder.head_dim]:
        return False
    return all(_is_plain(kind, decoder, tokens) for kind in decoder.kinds)


def _is_plain(layer: Layer, decoder: Decoder, tokens: int) -> bool:
    attention, mlp = layer.attention, layer.mlp
    if attention is None or mlp is None or attention.qk_norm == "row" or 0 < attention.window < tokens:
        return False
    plain = Attention(
        1 / math.sqrt(decoder.head_dim),
        window=attention.window,
        qk_norm=attention.qk_norm,
        qkv_bias=attention.qkv_bias,
        output_bias=attention.output_bias,
    )
    return layer == Layer(plain, Mlp(mlp.inner, bias=mlp.bias))


def rms_norm(x: F32, weight: F32, epsilon: float) -> F32:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""
    return x * (_inverse_rms(x, epsilon) * weight)


def linear(x: F32, weights: Weights, name: str) -> F32:
    """x W^T, and the bias where the layer has one."""
    weight = weights[f"{name}.weight"]
    y = (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], len(weight))
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        y += bias
    return y


def attention_input(x: F32, weights: Weights, shape: BlockShape) -> F32:
    """Returns the input of the query, key and value projections."""
    return rms_norm(x, weights["input_layernorm.weight"], shape.epsilon)


def attend(normed: F32, weights: Weights, shape: BlockShape) -> F32:
    """attention_input's result -> the input of the output projection, [windows, tokens, heads * head_dim]."""
    queries, keys, values = (linear(normed, weights, f"self_attn.{name}_proj") for name in "qkv")
    queries = _rotate(_head_norm(_heads(queries, shape.heads), weights, "q_norm", shape), shape, 1)
    keys = _rotate(_head_norm(_heads(keys, shape.kv_heads), weights, "k_norm", shape), shape, 1)
    values = _heads(values, shape.kv_heads)
    out = np.empty_like(queries)
    for window in range(len(normed)):
        for head in range(shape.kv_heads):
            mine = slice(head * (shape.heads // shape.kv_heads), (head + 1) * (shape.heads // shape.kv_heads))
            _attend_head(queries[window, mine], keys[window, head], values[window, head], out[window, mine])
    return _joined(out)


def mlp_input(x: F32, weights: Weights, shape: BlockShape) -> F32:
    """Returns the input of the gate and up projections; x is the residual after attention."""
    return rms_norm(x, weights["post_attention_layernorm.weight"], shape.epsilon)


def gated(normed: F32, weights: Weights) -> F32:
    """mlp_input's result -> the input of the down projection: silu(gate) * up."""
    gate = linear(normed, weights, "mlp.gate_proj")
    up = linear(normed, weights, "mlp.up_proj")
    up *= gate
    np.negative(gate, out=gate)
    with np.errstate(over="ignore"):  # x / inf is the intended 0
        np.exp(gate, out=gate)
        gate += 1
        up /= gate
    return up


def block(x: F32, weights: Weights, shape: BlockShape) -> F32:
    """Computes the whole layer: x [windows, tokens, hidden] -> the same shape."""
    x = x + linear(attend(attention_input(x, weights, shape), weights, shape), weights, "self_attn.o_proj")
    x += linear(gated(mlp_input(x, weights, shape), weights), weights, "mlp.down_proj")
    return x


def block_gradients(x: F32, weights: Weights, shape: BlockShape, y_gradient: F32) -> tuple[F32, dict[str, F32]]:
    """Backward through `block`: the gradient of x, and of every weight in `weights`, by name.

    Repeats the forward pass, so that a caller keeps only x.
    """
    gradients: dict[str, F32] = {}
    normed = attention_input(x, weights, shape)
    context = attend(normed, weights, shape)
    middle = x + linear(context, weights, "self_attn.o_proj")
    normed_mlp = mlp_input(middle, weights, shape)

    gate, up = (linear(normed_mlp, weights, f"mlp.{name}_proj") for name in ("gate", "up"))
    sigmoid = _sigmoid(gate)
    silu = gate * sigmoid
    inner = _linear_backward(silu * up, weights, "mlp.down_proj", y_gradient, gradients)
    up_gradient = inner * silu
    gate_gradient = inner * up * (sigmoid + silu * (1 - sigmoid))
    normed_gradient = _linear_backward(normed_mlp, weights, "mlp.gate_proj", gate_gradient, gradients)
    normed_gradient += _linear_backward(normed_mlp, weights, "mlp.up_proj", up_gradient, gradients)
    name = "post_attention_layernorm.weight"
    middle_gradient = _norm_backward(middle, weights, name, normed_gradient, shape.epsilon, gradients)
    middle_gradient += y_gradient

    context_gradient = _linear_backward(context, weights, "self_attn.o_proj", middle_gradient, gradients)
    normed_gradient = _attend_backward(normed, weights, shape, context_gradient, gradients)
    x_gradient = _norm_backward(x, weights, "input_layernorm.weight", normed_gradient, shape.epsilon, gradients)
    x_gradient += middle_gradient
    return x_gradient, gradients


def norm_gradients(x: F32, weight: F32, epsilon: float, y_gradient: F32) -> tuple[F32, F32]:
    """Backward through rms_norm: the gradients of x and of the weight."""
    inverse = _inverse_rms(x, epsilon)
    scaled = x * inverse
    weight_gradient = (y_gradient * scaled).reshape(-1, x.shape[-1]).sum(0)
    inward = y_gradient * weight
    return inverse * (inward - scaled * np.mean(inward * scaled, -1, keepdims=True)), weight_gradient


def _inverse_rms(x: F32, epsilon: float) -> F32:
    squares = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
    return np.asarray(1 / np.sqrt(squares + np.float32(epsilon)))


def _sigmoid(x: F32) -> F32:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the intended 0
        return np.asarray(1 / (1 + np.exp(-x)))


def _heads(x: F32, heads: int) -> F32:
    windows, tokens, width = x.shape
    return np.ascontiguousarray(x.reshape(windows, tokens, heads, width // heads).transpose(0, 2, 1, 3))


def _joined(x: F32) -> F32:
    windows, heads, tokens, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(windows, tokens, heads * width)


def _head_norm(x: F32, weights: Weights, name: str, shape: BlockShape) -> F32:
    weight = weights.get(f"self_attn.{name}.weight")
    return x if weight is None else rms_norm(x, weight, shape.epsilon)


def _rotate(x: F32, shape: BlockShape, direction: int) -> F32:
    """Rotary embedding of [..., tokens, head_dim]; its transpose where direction is -1."""
    tokens, half = x.shape[-2], shape.head_dim // 2
    cosines, sines = shape.cosines[:tokens], shape.sines[:tokens] * np.float32(direction)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cosines - high * sines, high * cosines + low * sines], -1)


def _attend_head(queries: F32, keys: F32, values: F32, out: F32) -> None:
    """Causal attention of the query heads [group, tokens, head_dim] of one KV head, _QUERY_TOKENS tokens at a time."""
    tokens, head_dim = keys.shape
    queries = queries * np.float32(head_dim**-0.5)
    later = np.triu(np.full((_QUERY_TOKENS, _QUERY_TOKENS), -np.inf, np.float32), 1)
    for begin in range(0, tokens, _QUERY_TOKENS):
        end = min(begin + _QUERY_TOKENS, tokens)
        scores = (queries[:, begin:end].reshape(-1, head_dim) @ keys[:end].T).reshape(len(queries), -1, end)
        scores[..., begin:] += later[: end - begin, : end - begin]
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        context = (scores.reshape(-1, end) @ values[:end]).reshape(len(queries), -1, head_dim)
        np.divide(context, scores.sum(-1, keepdims=True), out=out[:, begin:end])


def _probabilities(queries: F32, keys: F32) -> F32:
    """Causal softmax: [group, tokens, head_dim], [tokens, head_dim] -> [group, tokens, tokens]."""
    tokens, head_dim = keys.shape
    scores = (queries.reshape(-1, head_dim) @ keys.T).reshape(len(queries), tokens, tokens)
    scores *= np.float32(head_dim**-0.5)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def _attend_backward(
    normed: F32, weights: Weights, shape: BlockShape, context_gradient: F32, gradients: dict[str, F32]
) -> F32:
    raw_queries, raw_keys, values = (
        _heads(linear(normed, weights, f"self_attn.{name}_proj"), heads)
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
    )
    queries = _rotate(_head_norm(raw_queries, weights, "q_norm", shape), shape, 1)
    keys = _rotate(_head_norm(raw_keys, weights, "k_norm", shape), shape, 1)
    out = _heads(context_gradient, shape.heads)
    queries_gradient, keys_gradient, values_gradient = (np.empty_like(x) for x in (queries, keys, values))
    scale, share = np.float32(shape.head_dim**-0.5), shape.heads // shape.kv_heads
    tokens = normed.shape[1]
    for window in range(len(normed)):
        for head in range(shape.kv_heads):
            mine = slice(head * share, (head + 1) * share)
            probabilities = _probabilities(queries[window, mine], keys[window, head])
            flat, flat_out = probabilities.reshape(-1, tokens), out[window, mine].reshape(-1, shape.head_dim)
            values_gradient[window, head] = flat.T @ flat_out
            scores = (flat_out @ values[window, head].T).reshape(probabilities.shape)
            scores -= np.einsum("hij,hij->hi", scores, probabilities)[..., None]
            scores *= probabilities
            scores *= scale
            queries_gradient[window, mine] = scores @ keys[window, head]
            keys_gradient[window, head] = scores.reshape(-1, tokens).T @ queries[window, mine].reshape(
                -1, shape.head_dim
            )
    total = np.zeros_like(normed)
    for name, raw, gradient in (
        ("q", raw_queries, _rotate(queries_gradient, shape, -1)),
        ("k", raw_keys, _rotate(keys_gradient, shape, -1)),
        ("v", values, values_gradient),
    ):
        norm = f"self_attn.{name}_norm.weight"
        if norm in weights:
            gradient = _norm_backward(raw, weights, norm, gradient, shape.epsilon, gradients)
        total += _linear_backward(normed, weights, f"self_attn.{name}_proj", _joined(gradient), gradients)
    return total


def _linear_backward(x: F32, weights: Weights, name: str, y_gradient: F32, gradients: dict[str, F32]) -> F32:
    flat_x, flat_y = x.reshape(-1, x.shape[-1]), y_gradient.reshape(-1, y_gradient.shape[-1])
    gradients[f"{name}.weight"] = flat_y.T @ flat_x
    if f"{name}.bias" in weights:
        gradients[f"{name}.bias"] = flat_y.sum(0)
    return (flat_y @ weights[f"{name}.weight"]).reshape(x.shape)


def _norm_backward(
    x: F32, weights: Weights, name: str, y_gradient: F32, epsilon: float, gradients: dict[str, F32]
) -> F32:
    x_gradient, gradients[name] = norm_gradients(x, weights[name], epsilon, y_gradient)
    return x_gradient
