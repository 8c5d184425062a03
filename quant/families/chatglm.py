"""ChatGLM2, ChatGLM3 and GLM-4-9B: rotary embedding of neighbours in half of the head, few key-value heads.

The checkpoints bring code of their own, which is not run. ChatGLM-6B, the first, is another model and refused.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from quant.errors import UnsupportedModelError
from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, usual_keys
from quant.families.rope import rope_from
from quant.families.rows import rotate_half
from quant.families.settings import Settings
from quant.families.standard import norm_epsilon, read_sizes

_SPELLINGS: Final = {
    "num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size", "seq_length": "max_position_embeddings",
    "kv_channels": "head_dim", "ffn_hidden_size": "intermediate_size",
    "multi_query_group_num": "num_key_value_heads",
}  # fmt: skip


def _describe(config: Config, where: str) -> Decoder:
    if "padded_vocab_size" not in config:
        raise UnsupportedModelError(f"{where}: this is the first ChatGLM; supported: ChatGLM2, ChatGLM3, GLM-4-9B")
    settings = Settings(usual_keys(config, {}, _SPELLINGS), where)
    for key, value in (
        ("multi_query_attention", True),
        ("rmsnorm", True),
        ("apply_residual_connection_post_layernorm", False),
        ("add_bias_linear", False),
        ("original_rope", True),
        ("pre_seq_len", None),
    ):
        settings.only(key, value)
    settings.only("quantization_bit", 0)
    sizes = read_sizes(settings)
    rope = rope_from(
        Settings({}, where),
        sizes.head_dim,
        sizes.max_positions,
        theta=10000.0 * settings.positive("rope_ratio", 1.0),
        rotary_factor=0.5,
    )
    bias = settings.flag("add_qkv_bias", False)
    layer = Layer(Attention(1 / math.sqrt(sizes.head_dim), qkv_bias=bias), Mlp(settings.size("intermediate_size")))
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(rope,),
        norm_epsilon=norm_epsilon(settings, "layernorm_epsilon", 1e-5),
        final_norm=settings.flag("post_layer_norm", True),
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    queries, keys = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    mlp = decoder.layer(0).mlp
    inner, rotary_dim = mlp.inner if mlp is not None else 0, decoder.ropes[0].rotary_dim

    def rotated(first: int, count: int) -> Stored:
        rows = rotate_half(np.arange(first, first + count), decoder.head_dim, rotary_dim)
        return Stored("self_attention.query_key_value", rows)

    top = {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
    }
    parts: Modules = {
        "input_layernorm": "input_layernorm",
        "self_attn.q_proj": rotated(0, queries),
        "self_attn.k_proj": rotated(queries, keys),
        "self_attn.v_proj": Stored("self_attention.query_key_value", slice(queries + keys, queries + 2 * keys)),
        "self_attn.o_proj": "self_attention.dense",
        "post_attention_layernorm": "post_attention_layernorm",
        "mlp.gate_proj": Stored("mlp.dense_h_to_4h", slice(0, inner)),
        "mlp.up_proj": Stored("mlp.dense_h_to_4h", slice(inner, 2 * inner)),
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    return by_module(decoder, top, "transformer.encoder.layers.{}.", parts)


CHATGLM: Final = Family(
    ("chatglm",),
    "ChatGLMForConditionalGeneration",
    _describe,
    _tensors,
    ("*rotary_pos_emb.inv_freq",),
    head="transformer.output_layer.weight",
    brings_code=True,
)
