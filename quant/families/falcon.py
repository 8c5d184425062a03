"""Falcon: one or few key-value heads, attention and MLP side by side; its first models have ALiBi and biases instead.

ALiBi's slopes are computed exactly. transformers rounds slope times position to bfloat16, which no fixed slope can do.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, by_module, fused_by_heads, usual_keys
from quant.families.rope import rope_of
from quant.families.rows import alibi_slopes
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_SPELLINGS: Final = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"}


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, {"max_position_embeddings": 2048}, _SPELLINGS), where)
    heads = settings.size("num_attention_heads")
    new, parallel = settings.flag("new_decoder_architecture", False), settings.flag("parallel_attn", True)
    kv_heads = heads
    if new:
        kv_heads = settings.size("num_kv_heads", settings.size("n_head_kv", heads))
    elif settings.flag("multi_query", True):
        kv_heads = 1
    norms = settings.size("num_ln_in_parallel_attn", 2 if new else 1)
    if new and not parallel:
        raise settings.unsupported("parallel_attn", "false is not supported with new_decoder_architecture")
    if norms > (2 if new else 1):
        raise settings.unsupported("num_ln_in_parallel_attn", f"{norms} is not supported for this architecture")
    usual = usual_keys(config, {"max_position_embeddings": 2048}, _SPELLINGS)
    sizes = read_sizes(Settings({**usual, "num_key_value_heads": kv_heads}, where), tied=True)
    alibi, bias = settings.flag("alibi", False), settings.flag("bias", False)
    scale = 1 / math.sqrt(sizes.head_dim)
    # Falcon scales scores after ALiBi was added.
    slopes = tuple(slope * scale for slope in alibi_slopes(heads)) if alibi else None
    attention = Attention(scale, rope=None if alibi else 0, slopes=slopes, qkv_bias=bias, output_bias=bias)
    inner = settings.size("ffn_hidden_size", 4 * sizes.hidden_size)
    layer = Layer(
        attention,
        Mlp(inner, activation_of(settings, "activation", "gelu"), gated=False, bias=bias),
        mlp_norm=not parallel or norms == 2,
        parallel=parallel,
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=() if alibi else (rope_of(settings, sizes.head_dim, sizes.max_positions),),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_epsilon", 1e-5),
        norm_bias=True,
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {
        "model.embed_tokens": "transformer.word_embeddings",
        "model.norm": "transformer.ln_f",
        "lm_head": "lm_head",
    }
    layer = decoder.layer(0)
    two = layer.parallel and layer.mlp_norm
    heads = (decoder.heads // decoder.kv_heads, 1, 1)
    parts: Modules = {
        **fused_by_heads("self_attention.query_key_value", decoder.kv_heads, heads, decoder.head_dim),
        "input_layernorm": "ln_attn" if two else "input_layernorm",
        "self_attn.o_proj": "self_attention.dense",
        "post_attention_layernorm": "ln_mlp" if two else "post_attention_layernorm",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    return by_module(decoder, top, "transformer.h.{}.", parts)


FALCON: Final = Family(
    ("falcon", "RefinedWeb", "RefinedWebModel"),
    "FalconForCausalLM",
    _describe,
    _tensors,
    ("*rotary_emb.inv_freq",),
    brings_code=True,
)
