"""Granite: Llama with four multipliers, which end in the embedding's scale, attention's, the head's and the weights."""

from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.family import Config, Family, Tensor
from quant.families.llama import dense_mlp
from quant.families.modules import Stored, by_module
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    bias = settings.flag("attention_bias", False)
    settings.positive("residual_multiplier", 1.0)
    attention = Attention(settings.positive("attention_multiplier", 1.0), qkv_bias=bias, output_bias=bias)
    return sizes.decoder(
        [Layer(attention, dense_mlp(settings, bias=True))] * sizes.layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions),),
        norm_epsilon=norm_epsilon(settings),
        embedding_scale=settings.positive("embedding_multiplier", 1.0),
        logit_scale=1 / settings.positive("logits_scaling", 1.0),
    )


_SAME: Final = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "mlp.gate_proj", "mlp.up_proj",
)  # fmt: skip


def _tensors(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    residual = float(config.get("residual_multiplier") or 1.0)
    parts = {
        **{name: Stored(name) for name in _SAME},
        **{name: Stored(name, scale=residual) for name in ("self_attn.o_proj", "mlp.down_proj")},
    }
    top = {name: name for name in ("model.embed_tokens", "model.norm", "lm_head")}
    return by_module(decoder, top, "model.layers.{}.", parts)


GRANITE: Final = Family(("granite",), "GraniteForCausalLM", _describe, _tensors, ("*rotary_emb.inv_freq",))
