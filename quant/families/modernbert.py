"""ModernBERT: an encoder with rotary positions, windows in two layers of three, gated GELU, norms before each part."""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.encoders import embedder
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, prefixed, usual_keys
from quant.families.rope import rope_of_layers
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_DEFAULTS: Final = {
    "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "max_position_embeddings": 8192,
}  # fmt: skip
_THETAS: Final = {"full_attention": 160000.0, "sliding_attention": 10000.0}


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _DEFAULTS), where)
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        settings.only(key, False)
    settings.only("architectures", None, ["ModernBertModel"], ["ModernBertForMaskedLM"])
    sizes = read_sizes(settings, tied=True)
    every = settings.size("global_attn_every_n_layers", 3)
    types = settings.items("layer_types") or [
        "sliding_attention" if number % every else "full_attention" for number in range(sizes.layers)
    ]
    window = settings.size("local_attention", 128) // 2 + 1
    mlp = Mlp(settings.size("intermediate_size"), activation_of(settings, "hidden_activation", "gelu"))
    layers = [
        Layer(
            Attention(
                1 / math.sqrt(sizes.head_dim),
                rope=0 if kind == "full_attention" else 1,
                window=0 if kind == "full_attention" else window,
                causal=False,
            ),
            mlp,
            attention_norm=number > 0,
        )
        for number, kind in enumerate(types)
    ]
    by_type = settings.section("rope_parameters") or Settings({}, where)
    older = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
    ropes = tuple(
        rope_of_layers(
            by_type.section(kind) or Settings({}, where),
            sizes.head_dim,
            sizes.max_positions,
            theta=settings.positive(older[kind], theta),
        )
        for kind, theta in _THETAS.items()
    )
    return sizes.decoder(
        layers,
        ropes=ropes,
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "norm_eps", 1e-5),
        embedding_norm=True,
        encoder=embedder(config, where),
    )


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    hidden, inner = decoder.hidden_size, decoder.widest_inner
    top: Modules = {
        "model.embed_tokens": "embeddings.tok_embeddings",
        "model.embed_norm": "embeddings.norm",
        "model.norm": "final_norm",
    }
    parts: Modules = {
        **{
            f"self_attn.{part}_proj": Stored("attn.Wqkv", slice(number * hidden, (number + 1) * hidden))
            for number, part in enumerate("qkv")
        },
        "input_layernorm": "attn_norm",
        "self_attn.o_proj": "attn.Wo",
        "post_attention_layernorm": "mlp_norm",
        "mlp.gate_proj": Stored("mlp.Wi", slice(0, inner)),
        "mlp.up_proj": Stored("mlp.Wi", slice(inner, 2 * inner)),
        "mlp.down_proj": "mlp.Wo",
    }
    return by_module(decoder, top, "layers.{}.", parts)


def _within(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Saved with a head."""
    return prefixed(_tensors(config, decoder), "", "model.")


MODERNBERT: Final = Family(
    ("modernbert",), "ModernBertModel", _describe, _tensors, ("head.*", "decoder.*"), alternatives=(_within,), head=""
)
