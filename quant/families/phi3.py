"""Phi-3 and Phi-4-mini: Llama with fused matrices, rotary embedding of a part of the head, LongRoPE and a window."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Rope
from quant.families.family import Config, Family, Tensor
from quant.families.llama import dense_mlp
from quant.families.modules import Modules, Stored, by_module, usual_keys
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import Sizes, norm_epsilon, read_sizes, window_of


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    attention = Attention(1 / math.sqrt(sizes.head_dim), window=window_of(settings, sizes.max_positions))
    return sizes.decoder(
        [Layer(attention, dense_mlp(settings))] * sizes.layers,
        ropes=(_rope(config, where, sizes),),
        norm_epsilon=norm_epsilon(settings, default=1e-5),
    )


def _rope(config: Config, where: str, sizes: Sizes) -> Rope:
    """Reads LongRoPE, which was also called "su" and, in the first checkpoints, "yarn"."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    scaling = Settings(config, where).section(key)
    if scaling is not None and scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
        config = {**config, key: {**config[key], "rope_type": "longrope"}}
    return rope_of(Settings(usual_keys(config, {}), where), sizes.head_dim, sizes.max_positions, partial=True)


_TOP: Final[Modules] = {
    "model.embed_tokens": "model.embed_tokens",
    "model.norm": "model.norm",
    "lm_head": "lm_head",
}


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    queries, keys = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    mlp = decoder.layer(0).mlp
    inner = mlp.inner if mlp is not None else 0
    fused, both = "self_attn.qkv_proj", "mlp.gate_up_proj"
    parts: Modules = {
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "post_attention_layernorm",
        "self_attn.q_proj": Stored(fused, slice(0, queries)),
        "self_attn.k_proj": Stored(fused, slice(queries, queries + keys)),
        "self_attn.v_proj": Stored(fused, slice(queries + keys, queries + 2 * keys)),
        "self_attn.o_proj": "self_attn.o_proj",
        "mlp.gate_proj": Stored(both, slice(0, inner)),
        "mlp.up_proj": Stored(both, slice(inner, 2 * inner)),
        "mlp.down_proj": "mlp.down_proj",
    }
    return by_module(decoder, _TOP, "model.layers.{}.", parts)


PHI3: Final = Family(("phi3",), "Phi3ForCausalLM", _describe, _tensors, ("*rotary_emb.inv_freq",), brings_code=True)
