"""Baichuan and Baichuan 2: Llama with a fused matrix; the 13B models have ALiBi instead of rotary embedding.

Baichuan 2 divides each row of its head by the row's length. The checkpoints bring code of their own, which is not run.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.family import Config, Family, Tensor
from quant.families.llama import dense_mlp
from quant.families.modules import Modules, Stored, by_module, usual_keys
from quant.families.rope import rope_of
from quant.families.rows import alibi_slopes
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes

_VOCABULARY_2: Final = 125696
"""Only this vocabulary size tells Baichuan 2 from Baichuan."""


def _describe(config: Config, where: str) -> Decoder:
    # The models with rotary embedding have max_position_embeddings, those with ALiBi have model_max_length alone.
    alibi = config.get("max_position_embeddings") is None
    spellings = {"model_max_length": "max_position_embeddings"} if alibi else {}
    settings = Settings(usual_keys(config, {}, spellings), where)
    sizes = read_sizes(settings)
    attention = Attention(
        1 / math.sqrt(sizes.head_dim),
        rope=None if alibi else 0,
        slopes=alibi_slopes(sizes.heads) if alibi else None,
    )
    return sizes.decoder(
        [Layer(attention, dense_mlp(settings))] * sizes.layers,
        ropes=() if alibi else (rope_of(settings, sizes.head_dim, sizes.max_positions),),
        norm_epsilon=norm_epsilon(settings),
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    hidden = decoder.hidden_size
    top: Modules = {
        "model.embed_tokens": "model.embed_tokens",
        "model.norm": "model.norm",
        "lm_head": Stored("lm_head", normalized=decoder.vocab_size == _VOCABULARY_2),
    }
    same = ("input_layernorm", "post_attention_layernorm", "self_attn.o_proj")
    parts: Modules = {
        **{name: name for name in same},
        **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        **{
            f"self_attn.{part}_proj": Stored("self_attn.W_pack", slice(number * hidden, (number + 1) * hidden))
            for number, part in enumerate("qkv")
        },
    }
    return by_module(decoder, top, "model.layers.{}.", parts)


BAICHUAN: Final = Family(
    ("baichuan",), "BaichuanForCausalLM", _describe, _tensors, ("*rotary_emb.*",), brings_code=True
)
