"""OLMo 2: norms after attention and MLP instead of before them, and norms of all query and key heads together."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.family import Config, Family, Tensor
from quant.families.llama import dense_mlp
from quant.families.modules import by_module
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    bias = settings.flag("attention_bias", False)
    layer = Layer(
        Attention(1 / math.sqrt(sizes.head_dim), qk_norm="row", qkv_bias=bias, output_bias=bias),
        dense_mlp(settings),
        attention_norm=False,
        attention_output_norm=True,
        mlp_norm=False,
        mlp_output_norm=True,
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions),),
        norm_epsilon=norm_epsilon(settings, default=1e-5),
    )


_PARTS: Final = {
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
    **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "self_attn.q_norm": "self_attn.q_norm",
    "self_attn.k_norm": "self_attn.k_norm",
    "attention_output_norm": "post_attention_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {name: name for name in ("model.embed_tokens", "model.norm", "lm_head")}
    return by_module(decoder, top, "model.layers.{}.", _PARTS)


OLMO2: Final = Family(("olmo2",), "Olmo2ForCausalLM", _describe, _tensors, ("*rotary_emb.inv_freq",))
