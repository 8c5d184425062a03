"""MPT: ALiBi, LayerNorm without bias, no biases at all, a fused matrix of queries, keys and values."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, by_module, fused_in_thirds, usual_keys
from quant.families.rows import alibi_slopes
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes

_SPELLINGS: Final = {
    "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "d_model": "hidden_size",
    "max_seq_len": "max_position_embeddings",
}  # fmt: skip


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, {"max_position_embeddings": 2048}, _SPELLINGS), where)
    settings.only("no_bias", True)
    settings.only("logit_scale", None)
    settings.only("norm_type", "low_precision_layernorm", "layernorm")
    options = settings.section("attn_config") or Settings({}, where)
    options.only("attn_type", "multihead_attention")
    options.only("alibi", True)  # without it these models learn an embedding of positions
    options.only("clip_qkv", None)
    for key in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        options.only(key, False)
    sizes = read_sizes(settings, tied=True)
    attention = Attention(
        options.positive("softmax_scale", 1 / math.sqrt(sizes.head_dim)),
        rope=None,
        slopes=alibi_slopes(sizes.heads, options.positive("alibi_bias_max", 8.0)),
    )
    inner = settings.size("expansion_ratio", 4) * sizes.hidden_size
    return sizes.decoder(
        [Layer(attention, Mlp(inner, "gelu_erf", gated=False))] * sizes.layers,
        ropes=(),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_epsilon", 1e-5),
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    hidden = decoder.hidden_size
    top = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.norm_f", "lm_head": "lm_head"}
    parts: Modules = {
        **fused_in_thirds("attn.Wqkv", hidden),
        "input_layernorm": "norm_1",
        "self_attn.o_proj": "attn.out_proj",
        "post_attention_layernorm": "norm_2",
        "mlp.up_proj": "ffn.up_proj",
        "mlp.down_proj": "ffn.down_proj",
    }
    return by_module(decoder, top, "transformer.blocks.{}.", parts)


MPT: Final = Family(("mpt",), "MptForCausalLM", _describe, _tensors, brings_code=True)
