"""The tensors that the engine takes, by the names it knows, derived from a description alone.

Knows neither families nor files. Names are Llama's spelling whatever the family; a matrix of experts is one stack.
"""

from dataclasses import dataclass

from quant.families.description import Decoder, Experts, Layer
from quant.families.family import TensorRole

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """A tensor of the engine: [rows, cols] of a matrix, [n] of a vector.

    Experts are one matrix: the first expert's rows, then the next one's; `count` says how many.
    """

    role: TensorRole
    shape: tuple[int, ...]
    count: int = 1


def engine_tensors(decoder: Decoder) -> dict[str, EngineTensor]:
    """Every tensor of a model by name, in the order of the forward pass."""
    hidden = decoder.hidden_size
    tensors = {EMBEDDING: EngineTensor("embedding", (decoder.vocab_size, hidden))}
    if decoder.embedding_norm:
        tensors |= _norm("model.embed_norm", decoder)
    for number in range(len(decoder.layers)):
        tensors |= _layer(f"model.layers.{number}", decoder, decoder.layer(number))
    if decoder.final_norm:
        tensors |= _norm("model.norm", decoder)
    if not decoder.tied_head:
        tensors[HEAD] = EngineTensor("head", (decoder.vocab_size, hidden))
    if decoder.head_bias:
        tensors["lm_head.bias"] = EngineTensor("vector", (decoder.vocab_size,))
    return tensors


def _layer(prefix: str, decoder: Decoder, layer: Layer) -> dict[str, EngineTensor]:
    tensors: dict[str, EngineTensor] = {}
    if layer.attention_norm:
        tensors |= _norm(f"{prefix}.input_layernorm", decoder)
    tensors |= _attention(f"{prefix}.self_attn", decoder, layer)
    if layer.attention_output_norm:
        tensors |= _norm(f"{prefix}.attention_output_norm", decoder)
    if layer.mlp_norm:
        tensors |= _norm(f"{prefix}.post_attention_layernorm", decoder)
    if layer.mlp is not None:
        tensors |= _mlp(f"{prefix}.mlp", decoder.hidden_size, layer.mlp.inner, layer.mlp.gated, layer.mlp.bias)
    if layer.experts is not None:
        tensors |= _experts(f"{prefix}.mlp", decoder.hidden_size, layer.experts)
    if layer.mlp_output_norm:
        tensors |= _norm(f"{prefix}.mlp_output_norm", decoder)
    return tensors


def _attention(prefix: str, decoder: Decoder, layer: Layer) -> dict[str, EngineTensor]:
    attention, hidden = layer.attention, decoder.hidden_size
    queries, keys = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    tensors: dict[str, EngineTensor] = {}
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        tensors |= _linear(f"{prefix}.{name}_proj", rows, hidden, attention.qkv_bias)
    tensors |= _linear(f"{prefix}.o_proj", hidden, queries, attention.output_bias)
    if attention.qk_norm != "none":
        for name, size in (("q", queries), ("k", keys)):
            size = decoder.head_dim if attention.qk_norm == "head" else size
            tensors[f"{prefix}.{name}_norm.weight"] = EngineTensor("vector", (size,))
    if attention.sinks:
        tensors[f"{prefix}.sinks"] = EngineTensor("vector", (decoder.heads,))
    return tensors


def _mlp(prefix: str, hidden: int, inner: int, is_gated: bool, bias: bool, count: int = 1) -> dict[str, EngineTensor]:
    tensors: dict[str, EngineTensor] = {}
    for name in ("gate", "up") if is_gated else ("up",):
        tensors |= _linear(f"{prefix}.{name}_proj", inner, hidden, bias, count)
    return tensors | _linear(f"{prefix}.down_proj", hidden, inner, bias, count)


def _experts(prefix: str, hidden: int, experts: Experts) -> dict[str, EngineTensor]:
    tensors = {f"{prefix}.router.weight": EngineTensor("router", (experts.count, hidden))}
    if experts.router_bias:
        tensors[f"{prefix}.router.bias"] = EngineTensor("vector", (experts.count,))
    if experts.correction_bias:
        tensors[f"{prefix}.router.correction_bias"] = EngineTensor("vector", (experts.count,))
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
