"""The forward pass of a description in NumPy: slow and short, the second opinion on what each field means.

It computes in the weights' type: in float64 it is the truth, in float32 it shows what rounding costs.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quant.families.description import Activation, Attention, Decoder, Experts, Layer, Rope

F64 = NDArray[np.float64]
"""Or float32."""
Weights = Mapping[str, F64]


def logits(decoder: Decoder, weights: Weights, ids: list[int], context: int | None = None) -> F64:
    """[tokens, vocabulary]. context: the longest that the model is loaded for; None: these tokens are."""
    decoder = _with_ropes(decoder, len(ids) if context is None else context)
    x = weights["model.embed_tokens.weight"][ids] * decoder.embedding_scale
    if decoder.embedding_norm:
        x = _norm(decoder, weights, "model.embed_norm", x)
    for number in range(len(decoder.layers)):
        x = _layer(decoder, decoder.layer(number), weights, f"model.layers.{number}", x)
    if decoder.final_norm:
        x = _norm(decoder, weights, "model.norm", x)
    head = weights["model.embed_tokens.weight" if decoder.tied_head else "lm_head.weight"]
    result = x @ head.T + (weights["lm_head.bias"] if decoder.head_bias else 0.0)
    result = result * decoder.logit_scale
    cap = decoder.logit_softcap
    return np.tanh(result / cap) * cap if cap else result


def _with_ropes(decoder: Decoder, context: int) -> Decoder:
    """With the long frequencies where they are used."""

    def chosen(rope: Rope) -> Rope:
        assert rope.dynamic is None
        if rope.long_frequencies is None or context <= rope.short_positions:
            return rope
        return replace(rope, frequencies=rope.long_frequencies, attention_factor=rope.long_attention_factor)

    return replace(decoder, ropes=tuple(chosen(rope) for rope in decoder.ropes))


def _layer(decoder: Decoder, layer: Layer, weights: Weights, prefix: str, x: F64) -> F64:
    def norm(there: bool, name: str, values: F64) -> F64:
        return _norm(decoder, weights, f"{prefix}.{name}", values) if there else values

    normed = norm(layer.attention_norm, "input_layernorm", x)
    attended = _attention(decoder, layer.attention, weights, f"{prefix}.self_attn", normed)
    attended = norm(layer.attention_output_norm, "attention_output_norm", attended)
    into = x if layer.parallel else x + attended
    if layer.mlp_norm:
        normed = norm(True, "post_attention_layernorm", into)
    elif not layer.parallel:
        normed = into
    output = np.zeros_like(x)
    if layer.mlp is not None:
        output += _mlp(weights, f"{prefix}.mlp", layer.mlp.activation, layer.mlp.gated, normed)
    if layer.experts is not None:
        output += _experts(layer.experts, weights, f"{prefix}.mlp", normed)
    return x + attended + norm(layer.mlp_output_norm, "mlp_output_norm", output)


def _norm(decoder: Decoder, weights: Weights, name: str, x: F64) -> F64:
    if decoder.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + decoder.norm_epsilon) * weights[f"{name}.weight"]
    result: F64 = scaled + weights[f"{name}.bias"] if decoder.norm_bias else scaled
    return result


def _linear(weights: Weights, name: str, x: F64) -> F64:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.zeros(1, x.dtype))


def _attention(decoder: Decoder, attention: Attention, weights: Weights, prefix: str, x: F64) -> F64:
    size, heads, kv_heads = decoder.head_dim, decoder.heads, decoder.kv_heads
    query, key, value = (_linear(weights, f"{prefix}.{part}_proj", x) for part in "qkv")
    if attention.qk_norm == "row":
        query, key = _rms(decoder, weights, prefix, "q", query), _rms(decoder, weights, prefix, "k", key)
    query, key, value = (each.reshape(len(x), -1, size) for each in (query, key, value))
    if attention.qk_norm == "head":
        query, key = _rms(decoder, weights, prefix, "q", query), _rms(decoder, weights, prefix, "k", key)
    positions = np.arange(len(x))
    if attention.rope is not None:
        query, key = (_rotated(decoder.ropes[attention.rope], each) for each in (query, key))
    if attention.temperature_scale:
        steps = np.floor(positions / attention.temperature_positions)
        factors = 1 + attention.temperature_scale * np.log(1 + steps)
        query = query * factors.astype(x.dtype)[:, None, None]
    distance = positions[:, None] - positions
    visible = (distance >= 0) & ((distance < attention.window) if attention.window else True)
    output = np.empty_like(query)
    for head in range(heads):
        keys, values = key[:, head * kv_heads // heads], value[:, head * kv_heads // heads]
        scores = query[:, head] @ keys.T * attention.scale
        if attention.softcap:
            scores = np.tanh(scores / attention.softcap) * attention.softcap
        if attention.slopes is not None:
            scores = scores - attention.slopes[head] * distance.astype(x.dtype)
        scores = np.exp(np.where(visible, scores, -np.inf))
        sink = math.exp(weights[f"{prefix}.sinks"][head]) if attention.sinks else 0.0
        output[:, head] = scores / (scores.sum(-1, keepdims=True) + sink) @ values
    return _linear(weights, f"{prefix}.o_proj", output.reshape(len(x), -1))


def _rms(decoder: Decoder, weights: Weights, prefix: str, part: str, x: F64) -> F64:
    root = np.sqrt((x * x).mean(-1, keepdims=True) + decoder.norm_epsilon)
    result: F64 = x / root * weights[f"{prefix}.{part}_norm.weight"]
    return result


def _rotated(rope: Rope, x: F64) -> F64:
    angles = np.arange(len(x))[:, None, None] * np.array(rope.frequencies)
    cos, sin = ((each * rope.attention_factor).astype(x.dtype) for each in (np.cos(angles), np.sin(angles)))
    half = rope.rotary_dim // 2
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _mlp(weights: Weights, prefix: str, activation: Activation, gated: bool, x: F64) -> F64:
    up = _linear(weights, f"{prefix}.up_proj", x)
    inner = _activated(activation, _linear(weights, f"{prefix}.gate_proj", x), up) if gated else None
    return _linear(weights, f"{prefix}.down_proj", _activated(activation, up, 1.0) if inner is None else inner)


def _activated(activation: Activation, gate: F64, up: "F64 | float") -> F64:
    result: F64
    if activation == "swiglu_oai":
        gate = np.minimum(gate, 7.0)
        result = gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -7.0, 7.0) + 1)
    elif activation == "silu":
        result = gate / (1 + np.exp(-gate)) * up
    elif activation == "gelu_tanh":
        inside = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        result = 0.5 * gate * (1 + np.tanh(inside)) * up
    elif activation == "gelu_erf":
        result = 0.5 * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2)).astype(gate.dtype)) * up
    else:
        result = np.maximum(gate, 0.0) ** 2 * up
    return result


def _experts(experts: Experts, weights: Weights, prefix: str, x: F64) -> F64:
    output = np.zeros_like(x)
    correction = weights[f"{prefix}.router.correction_bias"] if experts.correction_bias else 0.0
    for row, scores in enumerate(_linear(weights, f"{prefix}.router", x)):
        for expert, factor in zip(*_chosen(experts, scores, correction), strict=True):
            own = {
                f"e.{part}.{kind}": _of_expert(weights[f"{prefix}.experts.{part}.{kind}"], expert, experts.count)
                for part in ("gate_proj", "up_proj", "down_proj")
                for kind in (("weight", "bias") if experts.bias else ("weight",))
            }
            output[row] += factor * _mlp(own, "e", experts.activation, True, x[row : row + 1])[0]
    if experts.shared_inner:
        shared = _mlp(weights, f"{prefix}.shared", experts.activation, True, x)
        gates = x @ weights[f"{prefix}.shared_gate.weight"] if experts.shared_gate else None
        output += shared if gates is None else shared / (1 + np.exp(-gates))[:, None]
    return output


def _chosen(experts: Experts, scores: F64, correction: "F64 | float") -> tuple[NDArray[np.int64], F64]:
    """Experts of one row and their factors."""
    if experts.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-scores))
    elif experts.scoring == "softmax":
        scores = np.exp(scores) / np.exp(scores).sum()
    wanted = scores + correction
    if experts.groups > 1:
        groups = wanted.reshape(experts.groups, -1)
        best = np.sort(groups, 1)[:, -2 if experts.correction_bias else -1 :].sum(1)
        worse = np.argsort(-best, kind="stable")[experts.chosen_groups :]
        wanted = np.where(np.isin(np.arange(experts.count) // groups.shape[1], worse), -np.inf, wanted)
    chosen = np.sort(np.argsort(-wanted, kind="stable")[: experts.per_token])
    factors = scores[chosen]
    if experts.scoring == "softmax_of_chosen":
        factors = np.exp(factors) / np.exp(factors).sum()
    elif experts.renormalize:
        factors = factors / factors.sum()
    return chosen, factors * experts.scale


def _of_expert(stack: F64, expert: np.int64, count: int) -> F64:
    result: F64 = stack.reshape(count, -1, *stack.shape[1:])[expert]
    return result
