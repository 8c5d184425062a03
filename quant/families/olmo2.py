"""OLMo 2 and 3: norms after attention and MLP instead of before them, and norms of all query and key heads together.

OLMo 3 has windows too: three layers of four see one, and only the others' rotary embedding is scaled.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.family import Config, Family, Tensor
from quant.families.llama import dense_mlp
from quant.families.modules import by_module
from quant.families.rope import rope_of, rope_of_layers
from quant.families.settings import Settings
from quant.families.standard import Sizes, layer_types, norm_epsilon, read_sizes, window_of


def _layer(settings: Settings, sizes: Sizes, *, rope: int = 0, window: int = 0) -> Layer:
    bias = settings.flag("attention_bias", False)
    scale = 1 / math.sqrt(sizes.head_dim)
    return Layer(
        Attention(scale, rope=rope, window=window, qk_norm="row", qkv_bias=bias, output_bias=bias),
        dense_mlp(settings),
        attention_norm=False,
        attention_output_norm=True,
        mlp_norm=False,
        mlp_output_norm=True,
    )


def _olmo2(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    return sizes.decoder(
        [_layer(settings, sizes)] * sizes.layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions),),
        norm_epsilon=norm_epsilon(settings, default=1e-5),
    )


def _olmo3(config: Config, where: str) -> Decoder:
    settings = Settings({"sliding_window": 4096, **config}, where)
    sizes = read_sizes(settings)
    window = window_of(settings, sizes.max_positions)
    types = layer_types(
        settings, sizes.layers, lambda number: "full_attention" if number % 4 == 3 else "sliding_attention"
    )
    slides = [kind == "sliding_attention" for kind in types]
    nothing = Settings({}, where)
    by_type = settings.section("rope_parameters") or nothing
    theta = settings.positive("rope_theta", 5e5)
    full = by_type.section("full_attention") or settings.section("rope_scaling") or nothing
    parameters = (full, by_type.section("sliding_attention") or nothing)
    return sizes.decoder(
        [_layer(settings, sizes, rope=int(each), window=window if each else 0) for each in slides],
        ropes=tuple(rope_of_layers(each, sizes.head_dim, sizes.max_positions, theta=theta) for each in parameters),
        norm_epsilon=norm_epsilon(settings, default=1e-5),
    )


_PARTS: Final = {
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
    **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "self_attn.q_norm": "self_attn.q_norm",
    "self_attn.k_norm": "self_attn.k_norm",
    "attention_output_norm": "post_attention_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    top = {name: name for name in ("model.embed_tokens", "model.norm", "lm_head")}
    return by_module(decoder, top, "model.layers.{}.", _PARTS)


OLMO2: Final = Family(("olmo2",), "Olmo2ForCausalLM", _olmo2, _tensors, ("*rotary_emb.inv_freq",))
OLMO3: Final = Family(("olmo3",), "Olmo3ForCausalLM", _olmo3, _tensors, ("*rotary_emb.inv_freq",))
