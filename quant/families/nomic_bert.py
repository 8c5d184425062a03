"""NomicBERT (nomic-embed-text): BERT with rotary positions and a gated MLP, without biases but those of its norms.

With the authors' keys, which are GPT-2's, or with transformers'. Past `max_trained_positions` the authors' code scales
rotary positions; here texts end there.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.encoders import embedder, head_pieces
from quant.families.family import Config, Family, Piece, Tensor
from quant.families.modules import Modules, by_module, fused_in_thirds, usual_keys
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_DEFAULTS: Final = {
    "vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 2048, "layer_norm_eps": 1e-12,
}  # fmt: skip
_SPELLINGS: Final = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta", "activation_function": "hidden_act",
}  # fmt: skip
_ONLY: Final[Mapping[str, Any]] = {
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "causal": False,
    "parallel_block": False, "use_rms_norm": False, "rotary_emb_interleaved": False, "rotary_emb_fraction": 1.0,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "rotary_emb_scale_base": None,
    "num_experts": 0,
}  # fmt: skip


def _usual(config: Config) -> dict[str, Any]:
    usual = usual_keys(config, _DEFAULTS, _SPELLINGS)
    if usual.get("hidden_act") == "swiglu":
        usual["hidden_act"] = "silu"
    return usual


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(_usual(config), where)
    for key, value in _ONLY.items():
        settings.only(key, value)
    settings.only("architectures", None, ["NomicBertModel"], ["NomicBertForMaskedLM"])
    positions = settings.size("max_position_embeddings")
    trained = min(positions, settings.size("max_trained_positions", positions))
    sizes = read_sizes(Settings({**_usual(config), "max_position_embeddings": trained}, where), tied=True)
    layer = Layer(
        Attention(1 / math.sqrt(sizes.head_dim), causal=False),
        Mlp(settings.size("intermediate_size"), activation_of(settings)),
        attention_norm=False,
        attention_output_norm=True,
        mlp_norm=False,
        mlp_output_norm=True,
        norms_sum=True,
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(rope_of(settings, sizes.head_dim, trained, theta=1000.0),),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_eps", 1e-12),
        norm_bias=True,
        final_norm=False,
        embedding_norm=True,
        token_types=1 if settings.count("type_vocab_size", 2) else 0,
        encoder=embedder(config, where),
    )


def _tensors(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    rows = decoder.query_dim_of(decoder.attention(0))
    top: Modules = {"model.embed_tokens": "embeddings.word_embeddings", "model.embed_norm": "emb_ln"}
    parts: Modules = {
        **fused_in_thirds("attn.Wqkv", rows),
        "self_attn.o_proj": "attn.out_proj",
        "attention_output_norm": "norm1",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.up_proj": "mlp.fc11",
        "mlp.down_proj": "mlp.fc2",
        "mlp_output_norm": "norm2",
    }
    # A text's tokens are all of the first type.
    hidden, types = decoder.hidden_size, Settings(config, "config.json").count("type_vocab_size", 2)
    first = Piece("embeddings.token_type_embeddings.weight", rows=slice(0, hidden), padding=hidden * (types - 1))
    others = {"model.embed_types.weight": (first,), **head_pieces(decoder, {})}
    return by_module(decoder, top, "encoder.layers.{}.", parts, others=others)


NOMIC_BERT: Final = Family(
    ("nomic_bert",), "NomicBertModel", _describe, _tensors, ("cls.*", "*rotary_emb.inv_freq"), brings_code=True, head=""
)
