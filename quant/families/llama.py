"""Llama, Mistral, Qwen2, Qwen3 and MiMo: dense decoders that differ in biases, windows and norms of heads."""

import math
from collections.abc import Callable
from typing import Final

from quant.families.description import Attention, Decoder, Layer, Mlp
from quant.families.family import Config, Family, StoredPredictor
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import (
    Sizes,
    activation_of,
    bare_names,
    layer_types,
    norm_epsilon,
    read_sizes,
    same_names,
    window_of,
)

ROTARY_BUFFERS: Final = "*rotary_emb.inv_freq"
"""Buffers in older checkpoints, which follow from the configuration."""


def dense_mlp(settings: Settings, *, bias: bool = False) -> Mlp:
    """A gated MLP of `intermediate_size`. bias: whether the family's class reads `mlp_bias`."""
    return Mlp(
        settings.size("intermediate_size"),
        activation=activation_of(settings),
        bias=bias and settings.flag("mlp_bias", False),
    )


def decoder_of(settings: Settings, sizes: Sizes, layers: list[Layer], theta: float = 10000.0) -> Decoder:
    """A decoder with RMS norms whose layers share one rotary embedding; theta: the family's default."""
    return sizes.decoder(
        layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions, theta=theta),),
        norm_epsilon=norm_epsilon(settings),
    )


def qwen_windows(settings: Settings, sizes: Sizes, slides: Callable[[int], bool]) -> list[int]:
    """The window of every layer: `layer_types` says which layers have one or, if it is absent, `slides`."""
    window = window_of(settings, sizes.max_positions) if settings.flag("use_sliding_window", False) else 0
    types = layer_types(
        settings, sizes.layers, lambda number: "sliding_attention" if slides(number) else "full_attention"
    )
    return [window if each == "sliding_attention" else 0 for each in types]


def _from_the_first_window_layer(settings: Settings) -> Callable[[int], bool]:
    first = settings.count("max_window_layers", 28)
    return lambda number: number >= first


def _llama(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    bias = settings.flag("attention_bias", False)
    attention = Attention(1 / math.sqrt(sizes.head_dim), qkv_bias=bias, output_bias=bias)
    return decoder_of(settings, sizes, [Layer(attention, dense_mlp(settings, bias=True))] * sizes.layers)


def _mistral(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    attention = Attention(1 / math.sqrt(sizes.head_dim), window=window_of(settings, sizes.max_positions))
    return decoder_of(settings, sizes, [Layer(attention, dense_mlp(settings))] * sizes.layers)


def _qwen2(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    mlp, scale = dense_mlp(settings), 1 / math.sqrt(sizes.head_dim)
    windows = qwen_windows(settings, sizes, _from_the_first_window_layer(settings))
    layers = [Layer(Attention(scale, window=window, qkv_bias=True), mlp) for window in windows]
    return decoder_of(settings, sizes, layers)


def _qwen3(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    mlp, scale, bias = dense_mlp(settings), 1 / math.sqrt(sizes.head_dim), settings.flag("attention_bias", False)
    layers = [
        Layer(Attention(scale, window=window, qk_norm="head", qkv_bias=bias, output_bias=bias), mlp)
        for window in qwen_windows(settings, sizes, _from_the_first_window_layer(settings))
    ]
    return decoder_of(settings, sizes, layers)


LLAMA: Final = Family(("llama",), "LlamaForCausalLM", _llama, same_names, (ROTARY_BUFFERS,))
MISTRAL: Final = Family(("mistral",), "MistralForCausalLM", _mistral, same_names, (ROTARY_BUFFERS,))
QWEN2: Final = Family(("qwen2",), "Qwen2ForCausalLM", _qwen2, same_names, (ROTARY_BUFFERS,))
QWEN3: Final = Family(("qwen3",), "Qwen3ForCausalLM", _qwen3, same_names, (ROTARY_BUFFERS,), alternatives=(bare_names,))
_MIMO: Final = "model.mtp_layers.0."
MIMO: Final = Family(
    ("mimo",),
    "MiMoForCausalLM",
    _qwen2,
    same_names,
    (ROTARY_BUFFERS, "model.mtp_layers.*"),
    brings_code=True,
    predictor=StoredPredictor(
        layer=_MIMO,
        embedding_norm=f"{_MIMO}token_layernorm.weight",
        hidden_norm=f"{_MIMO}hidden_layernorm.weight",
        projection=f"{_MIMO}input_proj.weight",
        output_norm=f"{_MIMO}final_layernorm.weight",
        hidden_first=True,
    ),
)
"""MiMo-7B: Qwen2 with a layer that predicts further tokens. Its checkpoints bring code, which is not run."""
