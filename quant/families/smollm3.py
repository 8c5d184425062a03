"""SmolLM3: Llama in which some layers, by default every fourth, have no rotary embedding."""

import math
from typing import Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.family import Config, Family
from quant.families.llama import decoder_of, dense_mlp
from quant.families.settings import Settings
from quant.families.standard import layer_types, read_sizes, same_names, window_of


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings, tied=True)
    bias, mlp = settings.flag("attention_bias", False), dense_mlp(settings, bias=True)
    interval = settings.size("no_rope_layer_interval", 4)
    default = [int((number + 1) % interval != 0) for number in range(sizes.layers)]
    rotated = settings.items("no_rope_layers", sizes.layers) if "no_rope_layers" in settings else default
    if any(each not in (0, 1) for each in rotated):
        raise settings.wrong("no_rope_layers", "holds something that is neither 0 nor 1")
    window = window_of(settings, sizes.max_positions) if settings.flag("use_sliding_window", False) else 0
    types = layer_types(
        settings, sizes.layers, lambda n: "sliding_attention" if window and not rotated[n] else "full_attention"
    )
    layers = [
        Layer(
            Attention(
                1 / math.sqrt(sizes.head_dim),
                rope=0 if rotates else None,
                window=window if kind == "sliding_attention" else 0,
                qkv_bias=bias,
                output_bias=bias,
            ),
            mlp,
        )
        for rotates, kind in zip(rotated, types, strict=True)
    ]
    return decoder_of(settings, sizes, layers, theta=2e6)


SMOLLM3: Final = Family(("smollm3",), "SmolLM3ForCausalLM", _describe, same_names, ("*rotary_emb.inv_freq",))
