"""The engine's tensors by name, derived from a description alone.

Knows neither families nor files. Names are Llama's spelling whatever the family; a matrix of experts is one stack.
"""

from dataclasses import dataclass

from quant.families.description import Attention, Decoder, DeltaNet, Experts, Latent, Layer, ShortConv
from quant.families.family import TensorRole

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
POSITIONS = "model.embed_positions.weight"
EMBEDDING_PROJECTION = "model.embed_proj.weight"
LAYER_INPUTS = "model.embed_layer_inputs.weight"
DENSE = "encoder.dense."
"""The prefix of layers behind the pooling; their matrices are floats, row after row."""
PREDICTOR = "model.predictor"
DRAFT_HEAD = f"{PREDICTOR}.head.weight"
DRAFT_TOKENS = f"{PREDICTOR}.head_tokens"
"""The tokens of DRAFT_HEAD's rows, rising."""
EAGLE_STATES = 3
"""So many of the model's hidden states an EAGLE-3 head reads."""


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """A tensor of the engine: [rows, cols] of a matrix, [n] of a vector.

    Experts are one matrix: the first expert's rows, then the next one's; `count` says how many.
    """

    role: TensorRole
    shape: tuple[int, ...]
    count: int = 1


def engine_tensors(decoder: Decoder) -> dict[str, EngineTensor]:
    """Returns every tensor of a model by name, in the order of the forward pass; of an EAGLE-3 head its own ones."""
    if decoder.is_draft_head:
        return predictor_tensors(decoder)
    hidden, cols = decoder.hidden_size, decoder.embedding_cols
    tensors = {EMBEDDING: EngineTensor("embedding", (decoder.vocab_size, cols))}
    if decoder.embedding_size:
        tensors |= _linear("model.embed_proj", hidden, cols, False)
    if decoder.learned_positions:
        tensors[POSITIONS] = EngineTensor("table", (decoder.max_positions, hidden))
    if decoder.token_types:
        tensors["model.embed_types.weight"] = EngineTensor("vector", (decoder.token_types * hidden,))
    if decoder.embedding_norm:
        tensors |= _norm("model.embed_norm", decoder)
    if decoder.layer_inputs is not None:
        size = decoder.layer_inputs.size
        every = len(decoder.layers) * size
        tensors[LAYER_INPUTS] = EngineTensor("table", (decoder.vocab_size, every))
        tensors["model.layer_inputs_proj.weight"] = EngineTensor("linear", (every, hidden))
        tensors["model.layer_inputs_norm.weight"] = EngineTensor("vector", (size,))
    for number in range(len(decoder.layers)):
        tensors |= _layer(f"model.layers.{number}", decoder, decoder.layer(number), hidden)
    if decoder.final_norm:
        tensors |= _norm("model.norm", decoder)
    if decoder.embedding_size:
        tensors |= _linear("model.head_proj", cols, hidden, False)
    if not decoder.tied_head:
        tensors[HEAD] = EngineTensor("head", (decoder.vocab_size, cols))
    if decoder.head_bias:
        tensors["lm_head.bias"] = EngineTensor("vector", (decoder.vocab_size,))
    for number, dense in enumerate(() if decoder.encoder is None else decoder.encoder.dense):
        tensors[f"{DENSE}{number}.weight"] = EngineTensor("vector", (dense.rows * dense.cols,))
        if dense.bias:
            tensors[f"{DENSE}{number}.bias"] = EngineTensor("vector", (dense.rows,))
        if dense.norm_epsilon:
            tensors[f"{DENSE}{number}.norm.weight"] = EngineTensor("vector", (dense.rows,))
    return tensors | predictor_tensors(decoder)


def predictor_tensors(decoder: Decoder) -> dict[str, EngineTensor]:
    """Returns the tensors of the layer that drafts; none for a model without one."""
    predictor, hidden = decoder.predictor, decoder.hidden_size
    if predictor is None:
        return {}
    tensors = _norm(f"{PREDICTOR}.embedding_norm", decoder) | _norm(f"{PREDICTOR}.hidden_norm", decoder)
    tensors |= _linear(f"{PREDICTOR}.input_proj", hidden, (EAGLE_STATES if predictor.eagle else 2) * hidden, False)
    if predictor.input_norm:
        tensors[f"{PREDICTOR}.input_norm.weight"] = EngineTensor("vector", (EAGLE_STATES * hidden,))
    tensors |= _layer(PREDICTOR, decoder, decoder.kinds[predictor.kind], 2 * hidden if predictor.eagle else hidden)
    tensors |= _norm(f"{PREDICTOR}.output_norm", decoder)
    if predictor.head_tokens:
        tensors[DRAFT_HEAD] = EngineTensor("head", (predictor.head_tokens, hidden))
        tensors[DRAFT_TOKENS] = EngineTensor("vector", (predictor.head_tokens,))
    return tensors


def _layer(prefix: str, decoder: Decoder, layer: Layer, inputs: int) -> dict[str, EngineTensor]:
    """inputs: of query, key and value."""
    tensors: dict[str, EngineTensor] = {}
    if layer.attention_norm:
        tensors |= _norm(f"{prefix}.input_layernorm", decoder)
    if layer.attention is not None:
        tensors |= _attention(f"{prefix}.self_attn", decoder, layer.attention, inputs)
    if layer.delta is not None:
        tensors |= _delta(f"{prefix}.delta", decoder.hidden_size, layer.delta)
    if layer.conv is not None:
        tensors |= _short_conv(f"{prefix}.conv", decoder.hidden_size, layer.conv)
    if layer.attention_output_norm:
        tensors |= _norm(f"{prefix}.attention_output_norm", decoder)
    if layer.mlp_norm:
        tensors |= _norm(f"{prefix}.post_attention_layernorm", decoder)
    if layer.mlp is not None:
        tensors |= _mlp(f"{prefix}.mlp", decoder.hidden_size, layer.mlp.inner, layer.mlp.gated, layer.mlp.bias)
    if layer.experts is not None:
        tensors |= _experts(f"{prefix}.mlp", decoder, layer.experts)
    if layer.mlp is not None and layer.experts is not None:
        for name in ("experts_norm", "dense_output_norm", "experts_output_norm"):
            tensors |= _norm(f"{prefix}.{name}", decoder)
    if layer.mlp_output_norm:
        tensors |= _norm(f"{prefix}.mlp_output_norm", decoder)
    if decoder.layer_inputs is not None:
        size, hidden = decoder.layer_inputs.size, decoder.hidden_size
        tensors |= _linear(f"{prefix}.layer_input.gate_proj", size, hidden, False)
        tensors |= _linear(f"{prefix}.layer_input.output_proj", hidden, size, False)
        tensors |= _norm(f"{prefix}.layer_input_norm", decoder)
    if layer.scaled:
        tensors[f"{prefix}.scale"] = EngineTensor("vector", (1,))
    return tensors


def _attention(prefix: str, decoder: Decoder, attention: Attention, inputs: int) -> dict[str, EngineTensor]:
    if attention.latent is not None:
        return _latent(prefix, decoder, attention, attention.latent)
    hidden = decoder.hidden_size
    queries, keys = decoder.query_dim_of(attention), decoder.kv_dim_of(attention)
    tensors: dict[str, EngineTensor] = {}
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        if (name == "v" and attention.value_is_key) or (name != "q" and attention.keys_of is not None):
            continue
        tensors |= _linear(f"{prefix}.{name}_proj", rows, inputs, attention.qkv_bias)
    if attention.output_gate:
        tensors |= _linear(f"{prefix}.gate_proj", queries, inputs, False)
    tensors |= _linear(f"{prefix}.o_proj", hidden, queries, attention.output_bias)
    if attention.qk_norm != "none":
        for name, size in (("q", queries), ("k", keys)):
            if name == "k" and attention.keys_of is not None:
                continue
            size = decoder.head_dim_of(attention) if attention.qk_norm == "head" else size
            tensors[f"{prefix}.{name}_norm.weight"] = EngineTensor("vector", (size,))
    return tensors | _sinks(prefix, decoder, attention)


def _sinks(prefix: str, decoder: Decoder, attention: Attention) -> dict[str, EngineTensor]:
    return {f"{prefix}.sinks": EngineTensor("vector", (decoder.heads,))} if attention.sinks else {}


def _latent(prefix: str, decoder: Decoder, attention: Attention, latent: Latent) -> dict[str, EngineTensor]:
    """Tensors of latent attention; rotary rows come first in each head's queries and in the latent."""
    hidden, heads, bias = decoder.hidden_size, decoder.heads, attention.qkv_bias
    queries = heads * (latent.rope_dim + latent.nope_dim)
    tensors: dict[str, EngineTensor] = {}
    if latent.query_rank:
        tensors |= _linear(f"{prefix}.q_a_proj", latent.query_rank, hidden, bias)
        tensors[f"{prefix}.q_a_norm.weight"] = EngineTensor("vector", (latent.query_rank,))
        tensors |= _linear(f"{prefix}.q_b_proj", queries, latent.query_rank, False)
    else:
        tensors |= _linear(f"{prefix}.q_proj", queries, hidden, False)
    tensors |= _linear(f"{prefix}.kv_a_proj", latent.rope_dim + latent.kv_rank, hidden, bias)
    tensors[f"{prefix}.kv_a_norm.weight"] = EngineTensor("vector", (latent.kv_rank,))
    tensors |= _linear(f"{prefix}.key_up_proj", latent.kv_rank, latent.nope_dim, False, heads)
    tensors |= _linear(f"{prefix}.value_up_proj", latent.value_dim, latent.kv_rank, False, heads)
    tensors |= _linear(f"{prefix}.o_proj", hidden, heads * latent.value_dim, attention.output_bias)
    return tensors | _sinks(prefix, decoder, attention)


def _delta(prefix: str, hidden: int, delta: DeltaNet) -> dict[str, EngineTensor]:
    values = delta.value_heads * delta.value_dim
    tensors = _linear(f"{prefix}.qkv_proj", delta.channels, hidden, False)
    tensors |= _linear(f"{prefix}.gate_proj", values, hidden, False)
    for name in ("beta", "decay"):
        tensors[f"{prefix}.{name}_proj.weight"] = EngineTensor("router", (delta.value_heads, hidden))
    tensors[f"{prefix}.conv.weight"] = EngineTensor("vector", (delta.channels * delta.taps,))
    tensors[f"{prefix}.decay"] = EngineTensor("vector", (delta.value_heads,))
    tensors[f"{prefix}.decay_bias"] = EngineTensor("vector", (delta.value_heads,))
    tensors[f"{prefix}.norm.weight"] = EngineTensor("vector", (delta.value_dim,))
    return tensors | _linear(f"{prefix}.output_proj", hidden, values, False)


def _short_conv(prefix: str, hidden: int, conv: ShortConv) -> dict[str, EngineTensor]:
    # taps: of all channels, the oldest token's first.
    tensors = _linear(f"{prefix}.input_proj", 3 * hidden, hidden, conv.bias)
    tensors[f"{prefix}.taps"] = EngineTensor("vector", (conv.taps * hidden,))
    if conv.bias:
        tensors[f"{prefix}.bias"] = EngineTensor("vector", (hidden,))
    return tensors | _linear(f"{prefix}.output_proj", hidden, hidden, conv.bias)


def _mlp(prefix: str, hidden: int, inner: int, is_gated: bool, bias: bool, count: int = 1) -> dict[str, EngineTensor]:
    tensors: dict[str, EngineTensor] = {}
    for name in ("gate", "up") if is_gated else ("up",):
        tensors |= _linear(f"{prefix}.{name}_proj", inner, hidden, bias, count)
    return tensors | _linear(f"{prefix}.down_proj", hidden, inner, bias, count)


def _experts(prefix: str, decoder: Decoder, experts: Experts) -> dict[str, EngineTensor]:
    hidden = decoder.hidden_size
    tensors = _norm(f"{prefix}.router.norm", decoder) if experts.router_norm else {}
    tensors |= {f"{prefix}.router.weight": EngineTensor("router", (experts.count, hidden))}
    if experts.router_bias:
        tensors[f"{prefix}.router.bias"] = EngineTensor("vector", (experts.count,))
    if experts.correction_bias:
        tensors[f"{prefix}.router.correction_bias"] = EngineTensor("vector", (experts.count,))
    if experts.expert_scale:
        tensors[f"{prefix}.router.expert_scale"] = EngineTensor("vector", (experts.count,))
    tensors |= _mlp(f"{prefix}.experts", hidden, experts.inner, True, experts.bias, experts.count)
    if experts.shared_inner:
        tensors |= _mlp(f"{prefix}.shared", hidden, experts.shared_inner, True, experts.bias)
    if experts.shared_gate:
        tensors[f"{prefix}.shared_gate.weight"] = EngineTensor("vector", (hidden,))
    return tensors


def _linear(prefix: str, rows: int, cols: int, bias: bool, count: int = 1) -> dict[str, EngineTensor]:
    tensors = {f"{prefix}.weight": EngineTensor("linear", (count * rows, cols), count)}
    if bias:
        tensors[f"{prefix}.bias"] = EngineTensor("vector", (count * rows,))
    return tensors


def _norm(prefix: str, decoder: Decoder) -> dict[str, EngineTensor]:
    tensors = {f"{prefix}.weight": EngineTensor("vector", (decoder.hidden_size,))}
    if decoder.norm_bias:
        tensors[f"{prefix}.bias"] = EngineTensor("vector", (decoder.hidden_size,))
    return tensors
