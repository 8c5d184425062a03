"""ModernBERT: an encoder with rotary positions, windows in two layers of three, gated GELU, norms before each part.

A reranker's head is a dense layer, an activation and a norm, and behind them the classifier.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Dense, Encoder, HeadActivation, Layer, Mlp, Pooling
from quant.families.encoders import check_one_label, embedder, head_pieces, scores
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, fused_in_thirds, prefixed, usual_keys
from quant.families.rope import rope_of_layers
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_DEFAULTS: Final = {
    "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "max_position_embeddings": 8192,
}  # fmt: skip
_HEAD: Final = {"0": "head.dense", "0.norm": "head.norm", "1": "classifier"}
_HEAD_ACTIVATIONS: Final[tuple[HeadActivation, ...]] = ("gelu", "silu", "relu", "tanh")
_THETAS: Final = {"full_attention": 160000.0, "sliding_attention": 10000.0}


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _DEFAULTS), where)
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        settings.only(key, False)
    if not scores(config):
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
        encoder=_reranker(settings, sizes.hidden_size) if scores(config) else embedder(config, where),
    )


def _reranker(settings: Settings, hidden: int) -> Encoder:
    check_one_label(settings)
    name = settings.text("classifier_activation", "gelu")
    activation = next((each for each in _HEAD_ACTIVATIONS if each == name), None)
    if activation is None:
        raise settings.unsupported("classifier_activation", f"is {name!r}; supported: {', '.join(_HEAD_ACTIVATIONS)}")
    settings.only("classifier_pooling", "cls", "mean")
    inner = Dense(
        hidden, hidden, settings.flag("classifier_bias", False), activation,
        norm_epsilon=norm_epsilon(settings, "norm_eps", 1e-5),
    )  # fmt: skip
    pooling: Pooling = "mean" if settings.get("classifier_pooling") == "mean" else "first"
    return Encoder(pooling, normalized=False, dense=(inner, Dense(1, hidden)), scores=True)


def _tensors(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    hidden, inner = decoder.hidden_size, decoder.widest_inner
    top: Modules = {
        "model.embed_tokens": "embeddings.tok_embeddings",
        "model.embed_norm": "embeddings.norm",
        "model.norm": "final_norm",
    }
    parts: Modules = {
        **fused_in_thirds("attn.Wqkv", hidden),
        "input_layernorm": "attn_norm",
        "self_attn.o_proj": "attn.Wo",
        "post_attention_layernorm": "mlp_norm",
        "mlp.gate_proj": Stored("mlp.Wi", slice(0, inner)),
        "mlp.up_proj": Stored("mlp.Wi", slice(inner, 2 * inner)),
        "mlp.down_proj": "mlp.Wo",
    }
    others = head_pieces(decoder, _HEAD if scores(config) else {})
    return by_module(decoder, top, "layers.{}.", parts, others=others)


def _within(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Saved with a head."""
    tensors = _tensors(config, decoder)
    for part in ("embeddings.", "layers.", "final_norm."):
        tensors = prefixed(tensors, part, f"model.{part}")
    return tensors


MODERNBERT: Final = Family(
    ("modernbert",), "ModernBertModel", _describe, _tensors, ("head.*", "decoder.*"), alternatives=(_within,), head=""
)
