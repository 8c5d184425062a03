"""Qwen, the first one: Llama with a fused matrix and other names. The checkpoints bring code, which is not run.

Past the trained length it multiplies queries by a logarithm and lets RoPE's theta grow; contexts end there instead.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, usual_keys
from quant.families.rope import rope_from
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes


def _describe(config: Config, where: str) -> Decoder:
    given = usual_keys(config, {}, {"kv_channels": "head_dim"})
    settings = Settings(given, where)
    trained = settings.size("seq_length")
    if settings.flag("use_dynamic_ntk", True) or settings.flag("use_logn_attn", True):
        longest = min(settings.size("max_position_embeddings", trained), trained)
        settings = Settings({**given, "max_position_embeddings": longest}, where)
    settings.only("scale_attn_weights", True)
    settings.only("no_bias", True)
    sizes = read_sizes(settings)
    inner = settings.size("intermediate_size")
    if inner % 2:
        raise settings.wrong("intermediate_size", f"is {inner}, which is odd: it counts gate and up together")
    rope = rope_from(
        Settings({}, where),
        sizes.head_dim,
        sizes.max_positions,
        theta=settings.positive("rotary_emb_base", 10000.0),
        rotary_factor=settings.positive("rotary_pct", 1.0),
    )
    return sizes.decoder(
        [Layer(Attention(1 / math.sqrt(sizes.head_dim), qkv_bias=True), Mlp(inner // 2))] * sizes.layers,
        ropes=(rope,),
        norm_epsilon=norm_epsilon(settings, "layer_norm_epsilon"),
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "lm_head": "lm_head"}
    size = decoder.heads * decoder.head_dim
    parts: Modules = {
        "input_layernorm": "ln_1",
        **{
            f"self_attn.{part}_proj": Stored("attn.c_attn", slice(number * size, (number + 1) * size))
            for number, part in enumerate("qkv")
        },
        "self_attn.o_proj": "attn.c_proj",
        "post_attention_layernorm": "ln_2",
        "mlp.gate_proj": "mlp.w2",
        "mlp.up_proj": "mlp.w1",
        "mlp.down_proj": "mlp.c_proj",
    }
    return by_module(decoder, top, "transformer.h.{}.", parts)


QWEN1: Final = Family(("qwen",), "QWenLMHeadModel", _describe, _tensors, ("*rotary_emb.*",), brings_code=True)
