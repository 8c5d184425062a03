"""The forward pass of a description in NumPy: slow and short, the second opinion on what each field means.

It computes in the weights' type: in float64 it is the truth, in float32 it shows what rounding costs.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quant.families.description import (
    Activation,
    Attention,
    Decoder,
    DeltaNet,
    Experts,
    Latent,
    Layer,
    Rope,
    ShortConv,
)

F64 = NDArray[np.float64]
"""Or float32."""
Weights = Mapping[str, F64]


def logits(decoder: Decoder, weights: Weights, ids: list[int], context: int | None = None) -> F64:
    """[tokens, vocabulary]. context: the longest that the model is loaded for; None: these tokens are."""
    decoder = _with_ropes(decoder, len(ids) if context is None else context)
    x = weights["model.embed_tokens.weight"][ids] * decoder.embedding_scale
    if decoder.embedding_norm:
        x = _norm(decoder, weights, "model.embed_norm", x)
    if decoder.embedding_size:
        x = x @ weights["model.embed_proj.weight"].T
    if decoder.learned_positions:
        x = x + weights["model.embed_positions.weight"][: len(ids)]
    inputs = _layer_inputs(decoder, weights, ids, x)
    keys: dict[int, tuple[F64, F64]] = {}
    for number in range(len(decoder.layers)):
        x = _layer(decoder, decoder.layer(number), weights, f"model.layers.{number}", x, inputs, keys)
    if decoder.final_norm:
        x = _norm(decoder, weights, "model.norm", x)
    if decoder.embedding_size:
        x = x @ weights["model.head_proj.weight"].T
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


def _layer_inputs(decoder: Decoder, weights: Weights, ids: list[int], x: F64) -> F64:
    """[layers, tokens, size], or nothing where there are none."""
    if decoder.layer_inputs is None:
        return np.zeros((len(decoder.layers), len(ids), 0), x.dtype)
    projected = _linear(weights, "model.layer_inputs_proj", x).reshape(len(ids), len(decoder.layers), -1)
    projected = projected / np.sqrt((projected * projected).mean(-1, keepdims=True) + decoder.norm_epsilon)
    embedded = weights["model.embed_layer_inputs.weight"][ids].reshape(projected.shape)
    inputs: F64 = projected * weights["model.layer_inputs_norm.weight"]
    return np.moveaxis(inputs + embedded * decoder.layer_inputs.embedding_scale, 1, 0).astype(x.dtype)


def _layer(
    decoder: Decoder, layer: Layer, weights: Weights, prefix: str, x: F64, inputs: F64, keys: dict[int, tuple[F64, F64]]
) -> F64:
    """keys: the keys and values of earlier layers, to which this layer's are added."""

    def norm(there: bool, name: str, values: F64) -> F64:
        return _norm(decoder, weights, f"{prefix}.{name}", values) if there else values

    normed = norm(layer.attention_norm, "input_layernorm", x)
    if layer.attention is not None:
        attended = _attention(decoder, layer.attention, weights, f"{prefix}.self_attn", normed, keys)
    elif layer.delta is not None:
        attended = _delta(decoder, layer.delta, weights, f"{prefix}.delta", normed)
    else:
        assert layer.conv is not None
        attended = _short_conv(layer.conv, weights, f"{prefix}.conv", normed)
    if layer.norms_sum:  # what follows adds to x what the norm of the sum has beside it
        attended = norm(True, "attention_output_norm", x + attended) - x
    else:
        attended = norm(layer.attention_output_norm, "attention_output_norm", attended)
    into = x if layer.parallel else x + attended
    if layer.mlp_norm:
        normed = norm(True, "post_attention_layernorm", into)
    elif not layer.parallel:
        normed = into
    both = layer.mlp is not None and layer.experts is not None
    output = np.zeros_like(x)
    if layer.mlp is not None:
        dense = _mlp(weights, f"{prefix}.mlp", layer.mlp.activation, layer.mlp.gated, normed)
        output += norm(both, "dense_output_norm", dense)
    if layer.experts is not None:
        normed = norm(True, "experts_norm", into) if both else normed
        scored = norm(True, "mlp.router.norm", into) if layer.experts.router_norm else normed
        mixed = _experts(layer.experts, weights, f"{prefix}.mlp", normed, scored)
        output += norm(both, "experts_output_norm", mixed)
    if layer.norms_sum:
        return norm(True, "mlp_output_norm", into + output)
    result = x + attended + norm(layer.mlp_output_norm, "mlp_output_norm", output)
    if decoder.layer_inputs is not None:
        gate = _linear(weights, f"{prefix}.layer_input.gate_proj", result)
        gated = _activated(decoder.layer_inputs.activation, gate, inputs[int(prefix.rpartition(".")[2])])
        result = result + norm(True, "layer_input_norm", _linear(weights, f"{prefix}.layer_input.output_proj", gated))
    return result * weights[f"{prefix}.scale"] if layer.scaled else result


def _norm(decoder: Decoder, weights: Weights, name: str, x: F64) -> F64:
    if decoder.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + decoder.norm_epsilon) * weights[f"{name}.weight"]
    result: F64 = scaled + weights[f"{name}.bias"] if decoder.norm_bias else scaled
    return result


def _linear(weights: Weights, name: str, x: F64) -> F64:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.zeros(1, x.dtype))


def _attention(
    decoder: Decoder, attention: Attention, weights: Weights, prefix: str, x: F64, stored: dict[int, tuple[F64, F64]]
) -> F64:
    if attention.latent is not None:
        return _latent_attention(decoder, attention, attention.latent, weights, prefix, x)
    if attention.keys_of is not None:
        borrowed = {f"{prefix}.{part}_proj.weight": weights[f"{prefix}.q_proj.weight"] for part in "kv"}
        weights = {f"{prefix}.k_norm.weight": weights.get(f"{prefix}.q_norm.weight", x), **weights, **borrowed}
    size, heads = decoder.head_dim_of(attention), decoder.heads
    kv_heads = decoder.kv_dim_of(attention) // size
    parts = "qkk" if attention.value_is_key else "qkv"
    query, key, value = (_linear(weights, f"{prefix}.{part}_proj", x) for part in parts)
    if attention.qk_norm == "row":
        query, key = _rms(decoder, weights, prefix, "q", query), _rms(decoder, weights, prefix, "k", key)
    query, key, value = (each.reshape(len(x), -1, size) for each in (query, key, value))
    if attention.qk_norm == "head":
        query, key = _rms(decoder, weights, prefix, "q", query), _rms(decoder, weights, prefix, "k", key)
    if attention.value_norm:
        value = value / np.sqrt((value * value).mean(-1, keepdims=True) + decoder.norm_epsilon)
    if attention.rope is not None:
        query, key = (_rotated(decoder.ropes[attention.rope], each) for each in (query, key))
    if attention.keys_of is None:
        stored[int(prefix.split(".")[2])] = key, value
    else:
        key, value = stored[attention.keys_of]
    key, value = (np.repeat(each, heads // kv_heads, axis=1) for each in (key, value))
    output = _attended(attention, weights, prefix, query, key, value)
    if attention.output_gate:
        output = output * _sigmoid(_linear(weights, f"{prefix}.gate_proj", x))
    return _linear(weights, f"{prefix}.o_proj", output)


def _latent_attention(
    decoder: Decoder, attention: Attention, latent: Latent, weights: Weights, prefix: str, x: F64
) -> F64:
    """With keys and values of each head, as the paper's formulas have them; the engine attends to latents."""
    heads, rope_dim = decoder.heads, latent.rope_dim

    def rms(name: str, values: F64) -> F64:
        root = np.sqrt((values * values).mean(-1, keepdims=True) + latent.norm_epsilon)
        result: F64 = values / root * weights[f"{prefix}.{name}.weight"]
        return result

    if latent.query_rank:
        query = _linear(weights, f"{prefix}.q_b_proj", rms("q_a_norm", _linear(weights, f"{prefix}.q_a_proj", x)))
    else:
        query = _linear(weights, f"{prefix}.q_proj", x)
    query = query.reshape(len(x), heads, -1)
    both = _linear(weights, f"{prefix}.kv_a_proj", x)
    shared, vectors = both[:, None, :rope_dim], rms("kv_a_norm", both[:, rope_dim:])
    if attention.rope is not None:
        rope = decoder.ropes[attention.rope]
        shared = _rotated(rope, shared)
        query = np.concatenate([_rotated(rope, query[..., :rope_dim]), query[..., rope_dim:]], axis=-1)
    key_up = weights[f"{prefix}.key_up_proj.weight"].reshape(heads, latent.kv_rank, -1)
    value_up = weights[f"{prefix}.value_up_proj.weight"].reshape(heads, -1, latent.kv_rank)
    own = np.stack([vectors @ key_up[head] for head in range(heads)], axis=1)
    key = np.concatenate([np.repeat(shared, heads, axis=1), own], axis=-1)
    value = np.stack([vectors @ value_up[head].T for head in range(heads)], axis=1)
    return _linear(weights, f"{prefix}.o_proj", _attended(attention, weights, prefix, query, key, value))


def _attended(attention: Attention, weights: Weights, prefix: str, query: F64, key: F64, value: F64) -> F64:
    """[tokens, heads * value size]; query, key, value: [tokens, heads, size], rotated."""
    positions = np.arange(len(query))
    if attention.temperature_scale:
        steps = np.floor(positions / attention.temperature_positions)
        factors = 1 + attention.temperature_scale * np.log(1 + steps)
        query = query * factors.astype(query.dtype)[:, None, None]
    distance = positions[:, None] - positions
    visible = (distance >= 0) & ((distance < attention.window) if attention.window else True)
    output = np.empty_like(value)
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head].T * attention.scale
        if attention.softcap:
            scores = np.tanh(scores / attention.softcap) * attention.softcap
        if attention.slopes is not None:
            scores = scores - attention.slopes[head] * distance.astype(query.dtype)
        scores = np.exp(np.where(visible, scores, -np.inf))
        sink = math.exp(weights[f"{prefix}.sinks"][head]) if attention.sinks else 0.0
        output[:, head] = scores / (scores.sum(-1, keepdims=True) + sink) @ value[:, head]
    return output.reshape(len(query), -1)


def _delta(decoder: Decoder, delta: DeltaNet, weights: Weights, prefix: str, x: F64) -> F64:
    """Token by token, as the recurrence is defined."""
    mixed = _convolved(_linear(weights, f"{prefix}.qkv_proj", x), weights[f"{prefix}.conv.weight"], delta.taps)
    mixed = mixed * _sigmoid(mixed)
    keys = delta.key_heads * delta.key_dim
    query, key = (_unit(mixed[:, at : at + keys].reshape(len(x), -1, delta.key_dim)) for at in (0, keys))
    query = query / math.sqrt(delta.key_dim)
    value = mixed[:, 2 * keys :].reshape(len(x), -1, delta.value_dim)
    beta = _sigmoid(_linear(weights, f"{prefix}.beta_proj", x))
    steps = np.log1p(np.exp(_linear(weights, f"{prefix}.decay_proj", x) + weights[f"{prefix}.decay_bias"]))
    kept = np.exp(-weights[f"{prefix}.decay"] * steps)
    output = np.empty_like(value)
    for head in range(delta.value_heads):
        of_keys = head // (delta.value_heads // delta.key_heads)
        state = np.zeros((delta.key_dim, delta.value_dim), x.dtype)
        for token in range(len(x)):
            k = key[token, of_keys]
            state = state * kept[token, head]
            state = state + np.outer(k, beta[token, head] * (value[token, head] - k @ state))
            output[token, head] = query[token, of_keys] @ state
    output = output / np.sqrt((output * output).mean(-1, keepdims=True) + decoder.norm_epsilon)
    gate = _linear(weights, f"{prefix}.gate_proj", x)
    output = (output * weights[f"{prefix}.norm.weight"]).reshape(len(x), -1) * gate * _sigmoid(gate)
    return _linear(weights, f"{prefix}.output_proj", output)


def _short_conv(conv: ShortConv, weights: Weights, prefix: str, x: F64) -> F64:
    into, out, value = np.split(_linear(weights, f"{prefix}.input_proj", x), 3, axis=1)
    by_channel = weights[f"{prefix}.taps"].reshape(conv.taps, -1).T
    mixed = _convolved(into * value, by_channel, conv.taps)
    if conv.bias:
        mixed = mixed + weights[f"{prefix}.bias"]
    return _linear(weights, f"{prefix}.output_proj", out * mixed)


def _convolved(x: F64, weight: F64, taps: int) -> F64:
    """Each channel with its own taps, the oldest token's first."""
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1]), x.dtype), x])
    by_channel = weight.reshape(-1, taps)
    result: F64 = np.sum([padded[tap : tap + len(x)] * by_channel[:, tap] for tap in range(taps)], axis=0)
    return result


def _unit(x: F64) -> F64:
    result: F64 = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return result


def _sigmoid(x: F64) -> F64:
    result: F64 = 1 / (1 + np.exp(-x))
    return result


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
    elif activation == "relu":
        result = np.maximum(gate, 0.0) * up
    else:
        result = np.maximum(gate, 0.0) ** 2 * up
    return result


def _experts(experts: Experts, weights: Weights, prefix: str, x: F64, scored: F64) -> F64:
    """scored: the router's input."""
    output = np.zeros_like(x)
    scale = weights[f"{prefix}.router.expert_scale"] if experts.expert_scale else np.ones(experts.count, x.dtype)
    correction = weights[f"{prefix}.router.correction_bias"] if experts.correction_bias else 0.0
    for row, scores in enumerate(_linear(weights, f"{prefix}.router", scored)):
        for expert, factor in zip(*_chosen(experts, scores, correction), strict=True):
            own = {
                f"e.{part}.{kind}": _of_expert(weights[f"{prefix}.experts.{part}.{kind}"], expert, experts.count)
                for part in ("gate_proj", "up_proj", "down_proj")
                for kind in (("weight", "bias") if experts.bias else ("weight",))
            }
            output[row] += factor * scale[expert] * _mlp(own, "e", experts.activation, True, x[row : row + 1])[0]
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
