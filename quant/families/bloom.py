"""BLOOM: ALiBi, LayerNorm also after the embedding, biases everywhere; published with and without a prefix."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, by_module, fused_by_heads, prefixed, usual_keys
from quant.families.rows import alibi_slopes
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes

_SPELLINGS: Final = {
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size",
    "seq_length": "max_position_embeddings",
}  # fmt: skip


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, {"max_position_embeddings": 2048}, _SPELLINGS), where)
    settings.only("apply_residual_connection_post_layernorm", False)
    sizes = read_sizes(settings, tied=True)
    attention = Attention(
        1 / math.sqrt(sizes.head_dim), rope=None, slopes=alibi_slopes(sizes.heads), qkv_bias=True, output_bias=True
    )
    layer = Layer(attention, Mlp(4 * sizes.hidden_size, "gelu_tanh", gated=False, bias=True))
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_epsilon", 1e-5),
        norm_bias=True,
        embedding_norm=True,
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {
        "model.embed_tokens": "transformer.word_embeddings",
        "model.embed_norm": "transformer.word_embeddings_layernorm",
        "model.norm": "transformer.ln_f",
        "lm_head": "lm_head",
    }
    parts: Modules = {
        **fused_by_heads("self_attention.query_key_value", decoder.heads, (1, 1, 1), decoder.head_dim),
        "input_layernorm": "input_layernorm",
        "self_attn.o_proj": "self_attention.dense",
        "post_attention_layernorm": "post_attention_layernorm",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    return by_module(decoder, top, "transformer.h.{}.", parts)


def _bare(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """BigScience's published form, saved from the model without a head."""
    return prefixed(_tensors(config, decoder), "transformer.", "")


BLOOM: Final = Family(("bloom",), "BloomForCausalLM", _describe, _tensors, alternatives=(_bare,))
