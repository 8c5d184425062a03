"""Gemma 1, 2 and 3: norms that multiply by 1 + weight, a scaled embedding and, from 2 on, four norms and windows.

A folder of Gemma 3 that also sees pictures is read as its language model; the vision tower is left out.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from quant.codes.bf16 import bf16_to_fp32, fp32_to_bf16
from quant.families.description import Activation, Attention, Decoder, Layer, Mlp, Rope
from quant.families.encoders import embedder
from quant.families.family import Config, Family, Tensor
from quant.families.modules import Modules, Stored, by_module, prefixed, usual_keys
from quant.families.rope import rope_of, rope_of_layers
from quant.families.settings import Settings
from quant.families.standard import (
    Sizes,
    activation_of,
    layer_types,
    norm_epsilon,
    read_sizes,
    window_of,
)

_GEMMA1: Final = {"head_dim": 256, "max_position_embeddings": 8192}
_GEMMA2: Final = {
    "vocab_size": 256000, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 8192, "sliding_window": 4096, "query_pre_attn_scalar": 256,
}  # fmt: skip
_GEMMA3: Final = {
    **_GEMMA2, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "max_position_embeddings": 131072,
}  # fmt: skip


def _gemma1(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _GEMMA1), where)
    sizes = read_sizes(settings, tied=True)
    # The first checkpoints say "gelu" in hidden_act and were trained with the approximation.
    said = "hidden_activation" if "hidden_activation" in settings else "hidden_act"
    activation: Activation = activation_of(settings, said, "gelu_pytorch_tanh")
    if activation == "gelu_erf":
        activation = "gelu_tanh"
    bias = settings.flag("attention_bias", False)
    settings.only("use_bidirectional_attention", False)
    attention = Attention(1 / math.sqrt(sizes.head_dim), qkv_bias=bias, output_bias=bias)
    layer = Layer(attention, Mlp(settings.size("intermediate_size"), activation))
    ropes = (rope_of(settings, sizes.head_dim, sizes.max_positions),)
    return _decoder(settings, config, sizes, [layer] * sizes.layers, ropes)


def _gemma2(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _GEMMA2), where)
    sizes = read_sizes(settings, tied=True)
    types = layer_types(settings, sizes.layers, lambda n: "full_attention" if n % 2 else "sliding_attention")
    softcap = softcap_of(config, settings, "attn_logit_softcapping", 50.0)
    layers = [_layer(settings, sizes, each, rope=0, softcap=softcap, qk_norm=False) for each in types]
    ropes = (rope_of(settings, sizes.head_dim, sizes.max_positions),)
    final = softcap_of(config, settings, "final_logit_softcapping", 30.0)
    return _decoder(settings, config, sizes, layers, ropes, logit_softcap=final)


def _gemma3(config: Config, where: str) -> Decoder:
    text = text_config(config, where)
    settings = Settings(usual_keys(text, _GEMMA3), where)
    sizes = read_sizes(settings, tied=True)
    pattern = settings.size("sliding_window_pattern", 6)
    types = layer_types(
        settings, sizes.layers, lambda n: "sliding_attention" if (n + 1) % pattern else "full_attention"
    )
    # transformers' class ignores this key, so its meaning is undefined.
    settings.only("attn_logit_softcapping", None)
    layers = [
        _layer(settings, sizes, each, rope=0 if each == "full_attention" else 1, softcap=0.0, qk_norm=True)
        for each in types
    ]
    if settings.flag("use_bidirectional_attention", False):  # EmbeddingGemma
        layers = [_seeing_all(layer) for layer in layers]
        return _decoder(
            settings, text, sizes, layers, _ropes(settings, sizes), encoder=embedder(config, settings.where)
        )
    final = softcap_of(text, settings, "final_logit_softcapping", 0.0)
    return _decoder(settings, text, sizes, layers, _ropes(settings, sizes), logit_softcap=final)


def _seeing_all(layer: Layer) -> Layer:
    """The layer without a causal mask; a window is half before and half behind a token."""
    assert layer.attention is not None
    window = layer.attention.window // 2 + 1 if layer.attention.window else 0
    return replace(layer, attention=replace(layer.attention, window=window, causal=False))


def text_config(config: Config, where: str) -> Mapping[str, Any]:
    """The language model's part of a configuration, which may stand alone."""
    if Settings(config, where).section("text_config") is None:
        return config
    shared = {key: config[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in config}
    return {**shared, **config["text_config"]}


def softcap_of(config: Config, settings: Settings, key: str, default: float) -> float:
    """A soft cap; null in the file means none, and an absent key the class's default."""
    return 0.0 if key in config and config[key] is None else settings.number(key, default)


def _layer(settings: Settings, sizes: Sizes, kind: str, *, rope: int, softcap: float, qk_norm: bool) -> Layer:
    if not qk_norm:  # Gemma 2
        settings.only("use_bidirectional_attention", False)
    bias = settings.flag("attention_bias", False)
    attention = Attention(
        settings.positive("query_pre_attn_scalar") ** -0.5,
        rope=rope,
        window=window_of(settings, sizes.max_positions) if kind == "sliding_attention" else 0,
        softcap=softcap,
        qk_norm="head" if qk_norm else "none",
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = Mlp(settings.size("intermediate_size"), activation_of(settings, "hidden_activation", "gelu_pytorch_tanh"))
    return Layer(attention, mlp, attention_output_norm=True, mlp_output_norm=True)


def _ropes(settings: Settings, sizes: Sizes) -> tuple[Rope, Rope]:
    """Rotary embeddings of layers with full attention, to which scaling applies, and of those with a window."""
    nothing = Settings({}, settings.where)
    by_type = settings.section("rope_parameters") or nothing
    full = by_type.section("full_attention") or settings.section("rope_scaling") or nothing
    local = by_type.section("sliding_attention") or nothing
    head_dim, positions = sizes.head_dim, sizes.max_positions
    return (
        rope_of_layers(full, head_dim, positions, theta=settings.positive("rope_theta", 1e6)),
        rope_of_layers(local, head_dim, positions, theta=settings.positive("rope_local_base_freq", 1e4)),
    )


def _decoder(
    settings: Settings, config: Config, sizes: Sizes, layers: list[Layer], ropes: tuple[Rope, ...], **options: Any
) -> Decoder:
    return sizes.decoder(
        layers,
        ropes=ropes,
        norm_epsilon=norm_epsilon(settings),
        embedding_scale=rounded_root(sizes.hidden_size, config),
        **options,
    )


def rounded_root(size: int, config: Config) -> float:
    """An embedding's scale as the checkpoint computes it: the square root of its size, in the weights' type."""
    dtype = str(config.get("dtype") or config.get("torch_dtype"))
    single = np.array([math.sqrt(size)], np.float32)
    if dtype.endswith("bfloat16"):
        return float(bf16_to_fp32(fp32_to_bf16(single))[0])
    return float(single.astype(np.float16)[0]) if dtype.endswith("float16") else float(single[0])


_TOP: Final[Modules] = {
    "model.embed_tokens": "model.embed_tokens",
    "model.norm": Stored("model.norm", offset=1.0),
    "lm_head": "lm_head",
}
_MATRICES: Final = {
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
    **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
_TWO_NORMS: Final = {
    name: Stored(name, offset=1.0)
    for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
}
_FOUR_NORMS: Final = {
    **_TWO_NORMS,
    "attention_output_norm": Stored("post_attention_layernorm", offset=1.0),
    "post_attention_layernorm": Stored("pre_feedforward_layernorm", offset=1.0),
    "mlp_output_norm": Stored("post_feedforward_layernorm", offset=1.0),
}


def _tensors1(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return by_module(decoder, _TOP, "model.layers.{}.", {**_MATRICES, **_TWO_NORMS})


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return by_module(decoder, _TOP, "model.layers.{}.", {**_MATRICES, **_FOUR_NORMS})


def _wrapped(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Tensors as transformers 5 saves a multimodal model."""
    return prefixed(_tensors(config, decoder), "model.", "model.language_model.")


def _wrapped_before(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Tensors as published: the whole language model, including its head, is one module."""
    return prefixed(_tensors(config, decoder), "", "language_model.")


def _bare(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Tensors saved from the model without a head, as an encoder's are."""
    return prefixed(_tensors(config, decoder), "model.", "")


_BUFFERS: Final = ("*rotary_emb.inv_freq",)
_PICTURES: Final = ("*vision_tower.*", "*multi_modal_projector.*")

GEMMA: Final = Family(("gemma",), "GemmaForCausalLM", _gemma1, _tensors1, _BUFFERS)
GEMMA2: Final = Family(("gemma2",), "Gemma2ForCausalLM", _gemma2, _tensors, _BUFFERS)
GEMMA3: Final = Family(
    ("gemma3_text", "gemma3"),
    "Gemma3ForCausalLM",
    _gemma3,
    _tensors,
    (*_BUFFERS, *_PICTURES),
    alternatives=(_wrapped, _wrapped_before, _bare),
)
