"""GPT-NeoX (Pythia, Dolly-v2): LayerNorm, biases, attention and MLP side by side, a matrix fused by heads."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, by_module, fused_by_heads, usual_keys
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_SPELLINGS: Final = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, {}, _SPELLINGS), where)
    sizes = read_sizes(settings)
    bias = settings.flag("attention_bias", True)
    mlp = Mlp(settings.size("intermediate_size"), activation_of(settings, default="gelu"), gated=False, bias=True)
    layer = Layer(
        Attention(1 / math.sqrt(sizes.head_dim), qkv_bias=bias, output_bias=bias),
        mlp,
        parallel=settings.flag("use_parallel_residual", True),
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions, rotary_factor=0.25, partial=True),),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_eps", 1e-5),
        norm_bias=True,
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {"model.embed_tokens": "gpt_neox.embed_in", "model.norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out"}
    parts: Modules = {
        **fused_by_heads("attention.query_key_value", decoder.heads, (1, 1, 1), decoder.head_dim),
        "input_layernorm": "input_layernorm",
        "self_attn.o_proj": "attention.dense",
        "post_attention_layernorm": "post_attention_layernorm",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    return by_module(decoder, top, "gpt_neox.layers.{}.", parts)


GPT_NEOX: Final = Family(
    ("gpt_neox",),
    "GPTNeoXForCausalLM",
    _describe,
    _tensors,
    ("*.attention.bias", "*.attention.masked_bias", "*rotary_emb.inv_freq"),
    head="embed_out.weight",
)
