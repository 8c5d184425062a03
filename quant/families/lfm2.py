"""LFM2, dense and with experts: layers of attention among many of a short gated convolution."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from quant.families.description import Attention, Decoder, Experts, Layer, Mlp, ShortConv
from quant.families.experts import fused_under, read_experts
from quant.families.family import Config, Family, Piece, Tensor
from quant.families.llama import ROTARY_BUFFERS
from quant.families.modules import ExpertPieces, Modules, Stored, by_module, usual_keys
from quant.families.rope import rope_of
from quant.families.settings import Settings
from quant.families.standard import Sizes, norm_epsilon, read_sizes

_DEFAULTS: Final = {"max_position_embeddings": 128_000, "num_key_value_heads": 8, "num_attention_heads": 32}
_SPELLINGS: Final = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
_MOST_TAPS: Final = 8
"""The engine's limit."""


def _lfm2(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _DEFAULTS, _SPELLINGS), where)
    sizes = read_sizes(settings, tied=True)
    # Always SiLU: the configuration has no key for it.
    mlp = Mlp(_inner(settings))
    return _decoder(settings, sizes, [(mlp, None)] * sizes.layers)


def _lfm2_moe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _DEFAULTS, _SPELLINGS), where)
    sizes = read_sizes(settings, tied=True)
    dense = min(settings.count("num_dense_layers", 2), sizes.layers)
    mlp, experts = Mlp(settings.size("intermediate_size")), None
    if dense < sizes.layers:
        experts = read_experts(
            settings, sizes, "moe_intermediate_size",
            scoring="sigmoid",
            correction_bias=settings.flag("use_expert_bias", True),
            renormalize=settings.flag("norm_topk_prob", True),
            scale=settings.positive("routed_scaling_factor", 1.0),
        )  # fmt: skip
    parts = [(mlp, None) if number < dense else (None, experts) for number in range(sizes.layers)]
    return _decoder(settings, sizes, parts)


def _inner(settings: Settings) -> int:
    """The inner size of a dense model's MLP, which is rounded as in Llama's first models."""
    inner = settings.size("intermediate_size")
    if not settings.flag("block_auto_adjust_ff_dim", True):
        return inner
    multiple = settings.size("block_multiple_of", 256)
    inner = int(settings.positive("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
    return -(-inner // multiple) * multiple


def _decoder(settings: Settings, sizes: Sizes, parts: Sequence[tuple[Mlp | None, Experts | None]]) -> Decoder:
    attention = Attention(1 / math.sqrt(sizes.head_dim), qk_norm="head")
    taps = settings.size("conv_L_cache", 3)
    if taps > _MOST_TAPS:
        raise settings.unsupported("conv_L_cache", f"is {taps}; up to {_MOST_TAPS} are run")
    conv = ShortConv(taps, settings.flag("conv_bias", False))
    layers = [
        Layer(attention if is_full else None, mlp, experts, conv=None if is_full else conv)
        for is_full, (mlp, experts) in zip(_full_layers(settings, sizes.layers), parts, strict=True)
    ]
    return sizes.decoder(
        layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions, theta=1e6),),
        norm_epsilon=norm_epsilon(settings, "norm_eps", 1e-5),
    )


def _full_layers(settings: Settings, layers: int) -> list[bool]:
    """Which layers have attention: by `layer_types`, else by `full_attn_idxs`, else all."""
    if "layer_types" in settings:
        types = settings.items("layer_types", layers)
        for each in types:
            if each not in ("full_attention", "conv"):
                raise settings.unsupported("layer_types", f"names {each!r}, which is not supported")
        return [each == "full_attention" for each in types]
    if "full_attn_idxs" not in settings:
        return [True] * layers
    full = settings.items("full_attn_idxs")
    return [number in full for number in range(layers)]


_TOP: Final[Modules] = {
    "model.embed_tokens": "model.embed_tokens", "model.norm": "model.embedding_norm", "lm_head": "lm_head",
}  # fmt: skip
_MATRICES: Final = {"gate": "w1", "up": "w3", "down": "w2"}
_LAYER: Final[Modules] = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"},
    "self_attn.o_proj": "self_attn.out_proj",
    **{f"self_attn.{part}_norm": f"self_attn.{part}_layernorm" for part in "qk"},
    "conv.input_proj": "conv.in_proj",
    "conv.output_proj": "conv.out_proj",
    **{f"mlp.{ours}_proj": f"feed_forward.{theirs}" for ours, theirs in _MATRICES.items()},
    "mlp.router": "feed_forward.gate",
    "mlp.router.correction_bias": "feed_forward.expert_bias",
}


def _by_itself(decoder: Decoder) -> ExpertPieces:
    def pieces(number: int, matrix: str, kind: str) -> tuple[Piece, ...]:
        experts = _experts_of(decoder, number)
        stem, name = f"model.layers.{number}.feed_forward.experts", _MATRICES[matrix.removesuffix("_proj")]
        return tuple(Piece(f"{stem}.{each}.{name}.{kind}") for each in range(experts.count))

    return pieces


def _fused(decoder: Decoder) -> ExpertPieces:
    def pieces(number: int, matrix: str, _: str) -> tuple[Piece, ...]:
        stem = f"model.layers.{number}.feed_forward.experts"
        return fused_under(stem, matrix.removesuffix("_proj"), _experts_of(decoder, number))

    return pieces


def _experts_of(decoder: Decoder, number: int) -> Experts:
    experts = decoder.layer(number).experts
    assert experts is not None
    return experts


def convolution(decoder: Decoder, stored: str) -> Modules:
    """The modules of a convolution whose weight is stored by channel, [hidden, (1,) taps]."""
    taps = max((kind.conv.taps for kind in decoder.kinds if kind.conv is not None), default=1)
    by_tap = np.arange(decoder.hidden_size * taps, dtype=np.int64).reshape(-1, taps).T.reshape(-1)
    return {"conv.taps": Stored(f"{stored}.weight", by_tap), "conv": stored}


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    parts = {**_LAYER, **convolution(decoder, "conv.conv")}
    return by_module(decoder, _TOP, "model.layers.{}.", parts, _by_itself(decoder))


def _tensors_fused(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    parts = {**_LAYER, **convolution(decoder, "conv.conv")}
    return by_module(decoder, _TOP, "model.layers.{}.", parts, _fused(decoder))


LFM2: Final = Family(("lfm2",), "Lfm2ForCausalLM", _lfm2, _tensors, (ROTARY_BUFFERS,))
LFM2_MOE: Final = Family(("lfm2_moe",), "Lfm2MoeForCausalLM", _lfm2_moe, _tensors, (ROTARY_BUFFERS,), (_tensors_fused,))
