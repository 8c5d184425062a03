"""Qwen3-Next, Qwen3.5 and Qwen3.6: Gated DeltaNet layers, and after every three of them one of gated attention.

A folder that also sees pictures is read as its language model, as transformers' classes of language models do. The
first of the layers that predict further tokens (`mtp`) is kept for drafts.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from quant.errors import SourceError
from quant.families.description import Attention, Decoder, DeltaNet, Experts, Layer
from quant.families.experts import ExpertPieces, each_by_itself, fused, read_experts, sparse_layers
from quant.families.family import Config, Family, Piece, StoredPredictor, Tensor
from quant.families.llama import ROTARY_BUFFERS, dense_mlp
from quant.families.modules import Modules, Stored, by_module, prefixed, usual_keys
from quant.families.rope import rope_of
from quant.families.rows import part_of_heads
from quant.families.settings import Settings
from quant.families.standard import MOST_HEADS, Sizes, norm_epsilon, read_sizes

_DEFAULTS: Final = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
_LEFT_OUT: Final = ("model.visual.*", "visual.*", "mtp.*", "model.mtp.*", ROTARY_BUFFERS)

_MOST_DIM: Final = 256
_MOST_TAPS: Final = 8
"""The engine's limit."""

Inputs = Callable[[DeltaNet], Modules]
"""A family's stored modules of queries, keys, values, gates, beta and decay."""
Spelling = Callable[[Config, Decoder], Mapping[str, Tensor]]


def _qwen3_next(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _DEFAULTS), where)
    sizes = read_sizes(settings)
    sparse = sparse_layers(settings, sizes.layers)
    renormalize = settings.flag("norm_topk_prob", True)
    experts = _experts(settings, sizes, renormalize) if any(sparse) else None
    return _decoder(settings, sizes, [experts if is_sparse else None for is_sparse in sparse])


def _qwen3_5(config: Config, where: str) -> Decoder:
    settings = Settings(_language_model(config, where), where)
    sizes = read_sizes(settings)
    return _decoder(settings, sizes, [None] * sizes.layers)


def _qwen3_5_moe(config: Config, where: str) -> Decoder:
    settings = Settings(_language_model(config, where), where)
    sizes = read_sizes(settings)
    # The class reads none of these: every layer has experts, and factors are always divided by their sum.
    settings.only("decoder_sparse_step", 1)
    settings.only("mlp_only_layers", [])
    settings.only("norm_topk_prob", True)
    return _decoder(settings, sizes, [_experts(settings, sizes, renormalize=True)] * sizes.layers)


def _language_model(config: Config, where: str) -> dict[str, Any]:
    """The configuration of the language model, which may be part of another, with its class's defaults."""
    if Settings(config, where).section("text_config") is None:
        return usual_keys(config, _DEFAULTS)
    shared = {key: config[key] for key in ("tie_word_embeddings",) if config.get(key) is not None}
    return {**usual_keys(config["text_config"], _DEFAULTS), **shared}


def _experts(settings: Settings, sizes: Sizes, renormalize: bool) -> Experts:
    shared = settings.size("shared_expert_intermediate_size")
    return read_experts(
        settings, sizes, "moe_intermediate_size", renormalize=renormalize, shared_inner=shared, shared_gate=True
    )


def _decoder(settings: Settings, sizes: Sizes, experts: list[Experts | None]) -> Decoder:
    """experts: of each layer; None where it has a dense MLP."""
    settings.only("hidden_act", "silu")  # the convolution's activation too
    settings.only("attention_bias", False)
    settings.only("attn_output_gate", True)
    settings.only("use_sliding_window", False)
    attention = Attention(1 / math.sqrt(sizes.head_dim), qk_norm="head", output_gate=True)
    delta = _delta(settings)
    mlp = None if all(experts) else dense_mlp(settings)
    layers = [
        Layer(
            attention=attention if is_full else None,
            delta=None if is_full else delta,
            mlp=mlp if own is None else None,
            experts=own,
        )
        for is_full, own in zip(_full_layers(settings, sizes.layers), experts, strict=True)
    ]
    return sizes.decoder(
        layers,
        ropes=(rope_of(settings, sizes.head_dim, sizes.max_positions, rotary_factor=0.25, partial=True),),
        norm_epsilon=norm_epsilon(settings),
    )


def _full_layers(settings: Settings, layers: int) -> list[bool]:
    """Which layers have attention: by `layer_types` or, where that is absent, by `full_attention_interval`."""
    interval = settings.size("full_attention_interval", 4)
    types = ["linear_attention" if (number + 1) % interval else "full_attention" for number in range(layers)]
    if "layer_types" in settings:
        types = settings.items("layer_types", layers)
    for each in types:
        if each not in ("full_attention", "linear_attention"):
            raise settings.unsupported("layer_types", f"names {each!r}, which is not supported")
    if "full_attention" not in types:
        raise settings.unsupported("layer_types", "or full_attention_interval gives no layer attention: not supported")
    return [each == "full_attention" for each in types]


def _delta(settings: Settings) -> DeltaNet:
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    for name, most in zip(names, (MOST_HEADS, MOST_HEADS, _MOST_DIM, _MOST_DIM, _MOST_TAPS), strict=True):
        if (size := settings.size(f"linear_{name}")) > most:
            raise settings.unsupported(f"linear_{name}", f"is {size}; up to {most} are run")
    key_heads, value_heads, key_dim, value_dim, taps = (settings.size(f"linear_{name}") for name in names)
    if value_heads % key_heads:
        raise SourceError(
            f"{settings.where}: {value_heads} value heads (linear_num_value_heads) and {key_heads} key heads"
            " (linear_num_key_heads) do not fit together"
        )
    return DeltaNet(key_heads, value_heads, key_dim, value_dim, taps)


def delta_of(decoder: Decoder) -> DeltaNet | None:
    """The model's one kind of Gated DeltaNet; None if no layer has it."""
    return next((kind.delta for kind in decoder.kinds if kind.delta is not None), None)


_TOP: Final[Modules] = {
    "model.embed_tokens": "model.embed_tokens",
    "model.norm": Stored("model.norm", offset=1.0),
    "lm_head": "lm_head",
}
_LAYER: Final[Modules] = {
    "input_layernorm": Stored("input_layernorm", offset=1.0),
    "post_attention_layernorm": Stored("post_attention_layernorm", offset=1.0),
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "kvo"},
    **{f"self_attn.{part}_norm": Stored(f"self_attn.{part}_norm", offset=1.0) for part in "qk"},
    **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{f"mlp.shared.{part}_proj": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    "mlp.router": "mlp.gate",
    "mlp.shared_gate": "mlp.shared_expert_gate",
    "delta.output_proj": "linear_attn.out_proj",
    "delta.conv": "linear_attn.conv1d",
    "delta.decay": Stored("linear_attn.A_log", exponential=True),
    "delta.decay_bias": "linear_attn.dt_bias",
    "delta.norm": "linear_attn.norm",
}


def query_and_gate(decoder: Decoder, name: str) -> dict[str, Stored]:
    """Queries and output gates of a stored module that alternates them by head."""
    rows = (part_of_heads(decoder.heads, (1, 1), part, decoder.head_dim) for part in range(2))
    return {f"self_attn.{part}_proj": Stored(name, each) for part, each in zip(("q", "gate"), rows, strict=True)}


def beta_and_decay(delta: DeltaNet, name: str) -> dict[str, Stored]:
    """Beta and decay of a stored module that alternates them by key head, each with its value heads'."""
    each = delta.value_heads // delta.key_heads
    rows = (part_of_heads(delta.key_heads, (each, each), part, 1) for part in range(2))
    return {f"delta.{part}_proj": Stored(name, own) for part, own in zip(("beta", "decay"), rows, strict=True)}


def _by_key_heads(delta: DeltaNet) -> Modules:
    """Qwen3-Next's order: query, key, values and gates of one key head after the other."""
    values = delta.value_heads // delta.key_heads * delta.value_dim
    parts = (delta.key_dim, delta.key_dim, values, values)
    query, key, value, gate = (part_of_heads(delta.key_heads, parts, part, 1) for part in range(4))
    name = "linear_attn.in_proj_qkvz"
    return {
        "delta.qkv_proj": Stored(name, np.concatenate([query, key, value])),
        "delta.gate_proj": Stored(name, gate),
        **beta_and_decay(delta, "linear_attn.in_proj_ba"),
    }


def _apart(_: DeltaNet) -> Modules:
    """Qwen3.5's modules, one for each."""
    names = {"qkv": "qkv", "gate": "z", "beta": "b", "decay": "a"}
    return {f"delta.{ours}_proj": f"linear_attn.in_proj_{theirs}" for ours, theirs in names.items()}


def _spelling(inputs: Inputs, experts: ExpertPieces, prefix: str = "model.") -> Spelling:
    """A checkpoint's tensor names. experts: fused or each by itself; prefix: before the language model's."""

    def tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
        def of_experts(number: int, matrix: str, __: str) -> tuple[Piece, ...]:
            mixture = decoder.layer(number).experts
            assert mixture is not None
            return experts(f"model.layers.{number}", matrix.removesuffix("_proj"), mixture)

        delta = delta_of(decoder)
        own = {} if delta is None else inputs(delta)
        parts = {**_LAYER, **query_and_gate(decoder, "self_attn.q_proj"), **own}
        return prefixed(by_module(decoder, _TOP, "model.layers.{}.", parts, of_experts), "model.", prefix)

    return tensors


_WRAPPED: Final = "model.language_model."
_PREDICTOR: Final = StoredPredictor(
    layer="mtp.layers.0.",
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
    projection="mtp.fc.weight",
    output_norm="mtp.norm.weight",
    norm_offset=1.0,
)
QWEN3_NEXT: Final = Family(
    ("qwen3_next",),
    "Qwen3NextForCausalLM",
    _qwen3_next,
    _spelling(_by_key_heads, each_by_itself),
    _LEFT_OUT,
    alternatives=(_spelling(_by_key_heads, fused),),
    predictor=_PREDICTOR,
)
QWEN3_5: Final = Family(
    ("qwen3_5", "qwen3_5_text"),
    "Qwen3_5ForCausalLM",
    _qwen3_5,
    _spelling(_apart, each_by_itself, _WRAPPED),
    _LEFT_OUT,
    alternatives=(_spelling(_apart, each_by_itself),),
    predictor=_PREDICTOR,
)
QWEN3_5_MOE: Final = Family(
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    "Qwen3_5MoeForCausalLM",
    _qwen3_5_moe,
    _spelling(_apart, fused, _WRAPPED),
    _LEFT_OUT,
    alternatives=(
        _spelling(_apart, each_by_itself, _WRAPPED),
        _spelling(_apart, fused),
        _spelling(_apart, each_by_itself),
    ),
    predictor=_PREDICTOR,
)
