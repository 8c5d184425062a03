"""GPT-J: one norm a layer, attention and MLP side by side, rotary embedding of neighbours in a part of the head."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, usual_keys
from quant.families.rope import rope_from
from quant.families.rows import rotate_half
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_SPELLINGS: Final = {
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
}  # fmt: skip


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, {}, _SPELLINGS), where)
    sizes = read_sizes(settings)
    rotary_dim = settings.size("rotary_dim")
    if rotary_dim > sizes.head_dim or rotary_dim % 2:
        raise settings.wrong("rotary_dim", f"is {rotary_dim}, which does not fit heads of {sizes.head_dim}")
    inner = settings.size("n_inner", 4 * sizes.hidden_size)
    layer = Layer(
        Attention(1 / math.sqrt(sizes.head_dim)),
        Mlp(inner, activation_of(settings, "activation_function", "gelu_new"), gated=False, bias=True),
        mlp_norm=False,
        parallel=True,
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(rope_from(Settings({}, where), rotary_dim, sizes.max_positions),),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_epsilon", 1e-5),
        norm_bias=True,
        head_bias=True,
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "lm_head": "lm_head"}
    rows = rotate_half(np.arange(decoder.heads * decoder.head_dim), decoder.head_dim, decoder.ropes[0].rotary_dim)
    parts: Modules = {
        "input_layernorm": "ln_1",
        "self_attn.q_proj": Stored("attn.q_proj", rows),
        "self_attn.k_proj": Stored("attn.k_proj", rows),
        "self_attn.v_proj": "attn.v_proj",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "mlp.fc_in",
        "mlp.down_proj": "mlp.fc_out",
    }
    return by_module(decoder, top, "transformer.h.{}.", parts)


GPTJ: Final = Family(
    ("gptj",), "GPTJForCausalLM", _describe, _tensors, ("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions")
)
