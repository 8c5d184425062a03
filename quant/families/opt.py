"""OPT: learned positions, ReLU, LayerNorm before each part; in OPT-350M of the sums, and its embedding is narrower."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, prefixed, usual_keys
from quant.families.settings import Settings
from quant.families.standard import activation_of, read_sizes

_SPELLINGS: Final = {"ffn_dim": "intermediate_size", "activation_function": "hidden_act"}
_PADDING_ROWS: Final = 2
"""Of the positions: no token takes them."""


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, {}, _SPELLINGS), where)
    settings.only("layer_norm_elementwise_affine", True)
    sizes = read_sizes(settings, tied=True)
    bias, before = settings.flag("enable_bias", True), settings.flag("do_layer_norm_before", True)
    embedding_size = settings.size("word_embed_proj_dim", sizes.hidden_size)
    if embedding_size > sizes.hidden_size:
        raise settings.unsupported("word_embed_proj_dim", "is more than the hidden size, which is not supported")
    layer = Layer(
        Attention(1 / math.sqrt(sizes.head_dim), rope=None, qkv_bias=bias, output_bias=bias),
        Mlp(settings.size("intermediate_size"), activation_of(settings, default="relu"), gated=False, bias=bias),
        attention_norm=before,
        attention_output_norm=not before,
        mlp_norm=before,
        mlp_output_norm=not before,
        norms_sum=not before,
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(),
        norm="layer",
        norm_epsilon=1e-5,
        norm_bias=True,
        final_norm=before and not settings.flag("_remove_final_layer_norm", False),
        learned_positions=True,
        embedding_size=0 if embedding_size == sizes.hidden_size else embedding_size,
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top: Modules = {
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.embed_proj": "model.decoder.project_in",
        "model.embed_positions": Stored(
            "model.decoder.embed_positions", slice(_PADDING_ROWS, None), padding=_PADDING_ROWS
        ),
        "model.norm": "model.decoder.final_layer_norm",
        "model.head_proj": "model.decoder.project_out",
        "lm_head": "lm_head",
    }
    first, second = ("input_layernorm", "post_attention_layernorm")
    if decoder.kinds[0].norms_sum:
        first, second = ("attention_output_norm", "mlp_output_norm")
    parts: Modules = {
        first: "self_attn_layer_norm",
        **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"},
        "self_attn.o_proj": "self_attn.out_proj",
        second: "final_layer_norm",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
    }
    return by_module(decoder, top, "model.decoder.layers.{}.", parts)


def _bare(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Saved from the model without a head."""
    return prefixed(_tensors(config, decoder), "model.", "")


OPT: Final = Family(("opt",), "OPTForCausalLM", _describe, _tensors, alternatives=(_bare,))
