"""gpt-oss: experts with biases, attention sinks, and a window on every other layer.

Its experts are stored as MXFP4, whose codes the engine keeps, or as floating point with inputs first; gate and up rows
alternate in both.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.experts import read_experts
from quant.families.family import Config, Family, Piece, Tensor
from quant.families.modules import Modules, by_module, usual_keys
from quant.families.rope import rope_from, rope_of
from quant.families.settings import Settings
from quant.families.standard import layer_types, norm_epsilon, read_sizes, window_of

_DEFAULTS: Final = {
    "head_dim": 64, "num_key_value_heads": 8, "num_local_experts": 128, "num_experts_per_tok": 4,
    "max_position_embeddings": 131072, "sliding_window": 128,
}  # fmt: skip
_YARN: Final = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_THETA: Final = 150000.0
_ALPHA: Final = 1.702
_LIMIT: Final = 7.0


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _DEFAULTS), where)
    sizes = read_sizes(settings)
    for key, value in (("swiglu_alpha", _ALPHA), ("swiglu_limit", _LIMIT), ("hidden_act", "silu")):
        settings.only(key, value)
    types = layer_types(settings, sizes.layers, lambda n: "full_attention" if n % 2 else "sliding_attention")
    window, bias = window_of(settings, sizes.max_positions), settings.flag("attention_bias", True)
    experts = read_experts(
        settings,
        sizes,
        "intermediate_size",
        activation="swiglu_oai",
        bias=True,
        router_bias=True,
        scoring="softmax_of_chosen",
    )
    layers = [
        Layer(
            Attention(
                1 / math.sqrt(sizes.head_dim),
                window=window if each == "sliding_attention" else 0,
                sinks=True,
                qkv_bias=bias,
                output_bias=bias,
            ),
            experts=experts,
        )
        for each in types
    ]
    if "rope_parameters" in settings or "rope_scaling" in settings:
        rope = rope_of(settings, sizes.head_dim, sizes.max_positions, theta=_THETA)
    else:
        rope = rope_from(Settings(_YARN, where), sizes.head_dim, sizes.max_positions, theta=_THETA)
    return sizes.decoder(layers, ropes=(rope,), norm_epsilon=norm_epsilon(settings, default=1e-5))


_TOP: Final[Modules] = {
    "model.embed_tokens": "model.embed_tokens",
    "model.norm": "model.norm",
    "lm_head": "lm_head",
}
_PARTS: Final[Modules] = {
    **{name: name for name in ("input_layernorm", "post_attention_layernorm", "mlp.router", "self_attn.sinks")},
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
}
_ROWS: Final = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2), "down_proj": None}


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Floating-point weights: an expert's matrix has inputs first."""
    return _with_experts(decoder, "", transposed=True)


def _mxfp4_tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Tensors as published. A stack has the name of its tensor of codes."""
    return _with_experts(decoder, "_blocks", transposed=False)


def _with_experts(decoder: Decoder, suffix: str, *, transposed: bool) -> Mapping[str, Tensor]:
    def experts(layer: int, part: str, kind: str) -> tuple[Piece, ...]:
        name = f"model.layers.{layer}.mlp.experts.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"
        held, is_bias = decoder.layer(layer).experts, kind == "bias"
        stored = f"{name}_bias" if is_bias else f"{name}{suffix}"
        return tuple(
            Piece(stored, _ROWS[part], index, transposed=transposed and not is_bias)
            for index in range(held.count if held else 0)
        )

    return by_module(decoder, _TOP, "model.layers.{}.", _PARTS, experts)


GPT_OSS: Final = Family(
    ("gpt_oss",),
    "GptOssForCausalLM",
    _describe,
    _tensors,
    ("*rotary_emb.inv_freq",),
    alternatives=(_mxfp4_tensors,),
)
