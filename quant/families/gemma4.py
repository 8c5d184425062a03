"""Gemma 4: layers of two attention shapes, values normed and sometimes the keys' own, experts beside a dense MLP.

A folder of a model that also sees and hears is read as its language model; among text, attention is causal. E2B and
E4B have inputs for each layer, and last layers that read the keys of earlier ones.
"""

from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Layer, LayerInputs, Mlp, Rope
from quant.families.experts import fused_under, read_experts
from quant.families.family import Config, Family, Piece, Tensor
from quant.families.gemma import rounded_root, softcap_of, text_config
from quant.families.modules import Modules, Stored, by_module, prefixed, usual_keys
from quant.families.rope import rope_of_layers
from quant.families.settings import Settings
from quant.families.standard import (
    MOST_HEAD_DIM,
    MOST_LAYERS,
    Sizes,
    activation_of,
    layer_types,
    norm_epsilon,
    read_sizes,
    window_of,
)

_DEFAULTS: Final = {
    "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    "sliding_window": 512, "hidden_size_per_layer_input": 256,
}  # fmt: skip
_UNIFIED: Final = {
    **_DEFAULTS, "max_position_embeddings": 262144, "sliding_window": 1024, "hidden_size_per_layer_input": 0,
}  # fmt: skip
_ROPES: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_GLOBAL_HEAD_DIM: Final = 512
_FULL: Final = "full_attention"
_HALF_ROOT: Final = 2.0**-0.5


def _describe(config: Config, where: str) -> Decoder:
    text = text_config(config, where)
    unified = str(text.get("model_type", "")).startswith("gemma4_unified")
    defaults, spellings = _UNIFIED if unified else _DEFAULTS, {"top_k_experts": "num_experts_per_tok"}
    settings = Settings(usual_keys(text, defaults, spellings), where)
    # "vision": the tokens of a picture see each other; there are none here.
    settings.only("use_bidirectional_attention", None, "vision")
    sizes = read_sizes(settings, tied=True)
    types = layer_types(settings, sizes.layers, lambda n: "sliding_attention" if (n + 1) % 6 else "full_attention")
    types[-1] = _FULL  # as transformers' class does, whatever the file says
    heads = _heads_of_layers(settings, sizes, types)
    return sizes.decoder(
        [_layer(settings, sizes, types, number, *of_layer) for number, of_layer in enumerate(heads)],
        ropes=_ropes(settings, sizes, types, heads),
        norm_epsilon=norm_epsilon(settings),
        embedding_scale=rounded_root(sizes.hidden_size, text),
        logit_softcap=softcap_of(text, settings, "final_logit_softcapping", 0.0),
        layer_inputs=_layer_inputs(settings, sizes, text),
    )


def _layer_inputs(settings: Settings, sizes: Sizes, text: Config) -> LayerInputs | None:
    size = settings.count("hidden_size_per_layer_input")
    if not size:
        return None
    if size > MOST_HEAD_DIM:
        raise settings.unsupported("hidden_size_per_layer_input", f"is {size}, more than {MOST_HEAD_DIM}")
    if settings.size("vocab_size_per_layer_input", 262144) != sizes.vocab_size:
        raise settings.unsupported("vocab_size_per_layer_input", f"is not the vocab_size, {sizes.vocab_size}")
    # The sum of embedding and projection is divided by the root of 2: here each of them is.
    scale = rounded_root(size, text) * _HALF_ROOT
    return LayerInputs(size, scale, activation_of(settings, "hidden_activation", "gelu_pytorch_tanh"))


def _keys_of(settings: Settings, types: list[str], number: int) -> int | None:
    """The layer whose keys this one reads: the last of its type among those with keys of their own."""
    first = len(types) - settings.count("num_kv_shared_layers", 0)
    if first < 0:
        raise settings.wrong("num_kv_shared_layers", f"is more than the {len(types)} layers")
    if number < first:
        return None
    if types[number] not in types[:first]:
        raise settings.wrong("num_kv_shared_layers", f"leaves no layer with {types[number]} that keeps its keys")
    return first - 1 - types[:first][::-1].index(types[number])


def _heads_of_layers(settings: Settings, sizes: Sizes, types: list[str]) -> list[tuple[int, int]]:
    """(key-value heads, size of a head) of each layer, in both of transformers' spellings."""
    by_layer = _by_layer(settings, sizes.layers)
    shared = settings.flag("attention_k_eq_v", False) and "num_global_key_value_heads" in settings
    of_full = (
        settings.size("num_global_key_value_heads") if shared else sizes.kv_heads,
        settings.size("global_head_dim", _GLOBAL_HEAD_DIM),
    )
    heads = []
    for number, kind in enumerate(types):
        kv_heads, head_dim = sizes.kv_heads, sizes.head_dim
        if by_layer is None and kind == _FULL:
            kv_heads, head_dim = of_full
        elif by_layer is not None and (own := by_layer.get(number)) is not None:
            kv_heads, head_dim = own.size("num_key_value_heads", kv_heads), own.size("head_dim", head_dim)
        if sizes.heads % kv_heads or head_dim % 2 or head_dim > MOST_HEAD_DIM:
            raise settings.wrong(
                "num_attention_heads",
                f"is {sizes.heads}, which does not fit layer {number}'s {kv_heads} key-value heads of {head_dim}",
            )
        heads.append((kv_heads, head_dim))
    if len({each for each, kind in zip(heads, types, strict=True) if kind == _FULL}) > 1:
        raise settings.unsupported("per_layer_config", "gives layers with full attention different heads")
    return heads


def _by_layer(settings: Settings, layers: int) -> dict[int, Settings] | None:
    """`per_layer_config` by the layer's number, which transformers pads with zeros ("05")."""
    given = settings.section("per_layer_config")
    if given is None:
        return None
    found: dict[int, Settings] = {}
    for key, options in settings.get("per_layer_config").items():
        number = int(key) if key.isascii() and key.isdigit() and len(key) <= len(str(MOST_LAYERS)) else layers
        if number >= layers or number in found:
            raise given.wrong(key, f"is not the number of one of {layers} layers, or is there twice")
        own = given.section(key)
        if own is None:
            continue
        for name in options.keys() - {"head_dim", "num_key_value_heads"}:
            raise own.unsupported(name, "is not supported for a layer alone")
        found[number] = own
    return found


def _layer(settings: Settings, sizes: Sizes, types: list[str], number: int, kv_heads: int, head_dim: int) -> Layer:
    bias, full = settings.flag("attention_bias", False), types[number] == _FULL
    keys_of = _keys_of(settings, types, number)
    wide = keys_of is not None and settings.flag("use_double_wide_mlp", False)
    attention = Attention(
        1.0,
        rope=0 if full else 1,
        window=0 if full else window_of(settings, sizes.max_positions),
        qk_norm="head",
        qkv_bias=bias,
        output_bias=bias,
        kv_heads=None if kv_heads == sizes.kv_heads else kv_heads,
        head_dim=None if head_dim == sizes.head_dim else head_dim,
        value_norm=keys_of is None,
        value_is_key=keys_of is None and full and settings.flag("attention_k_eq_v", False),
        keys_of=keys_of,
    )
    activation = activation_of(settings, "hidden_activation", "gelu_pytorch_tanh")
    experts = None
    if settings.flag("enable_moe_block", False):
        experts = read_experts(
            settings,
            sizes,
            "moe_intermediate_size",
            activation=activation,
            renormalize=True,
            router_norm=True,
            expert_scale=True,
        )
    return Layer(
        attention,
        Mlp(settings.size("intermediate_size") * (2 if wide else 1), activation),
        experts,
        attention_output_norm=True,
        mlp_output_norm=True,
        scaled=True,
    )


def _ropes(settings: Settings, sizes: Sizes, types: list[str], heads: list[tuple[int, int]]) -> tuple[Rope, ...]:
    """Rotary embeddings of layers with full attention and, if there are any, of those with a window."""
    given = settings.section("rope_parameters") or Settings(_ROPES, settings.where)

    def rope(kind: str, head_dim: int) -> Rope:
        parameters = given.section(kind)
        if parameters is None:
            raise given.wrong(kind, "is missing in rope_parameters")
        return rope_of_layers(parameters, head_dim, sizes.max_positions)

    of_full = rope(_FULL, heads[types.index(_FULL)][1])
    return (of_full,) if set(types) == {_FULL} else (of_full, rope("sliding_attention", sizes.head_dim))


_TOP: Final[Modules] = {
    **{name: name for name in ("model.embed_tokens", "model.norm", "lm_head")},
    "model.embed_layer_inputs": "model.embed_tokens_per_layer",
    "model.layer_inputs_norm": Stored("model.per_layer_projection_norm", scale=_HALF_ROOT),
}
_PARTS: Final[Modules] = {
    **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
    **{f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{name: name for name in ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm")},
    "attention_output_norm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
    "dense_output_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_output_norm": "post_feedforward_layernorm_2",
    "layer_input.gate_proj": "per_layer_input_gate",
    "layer_input.output_proj": "per_layer_projection",
    "layer_input_norm": "post_per_layer_input_norm",
    "scale": "layer_scalar",
    "mlp.router": "router.proj",
    "mlp.router.expert_scale": "router.per_expert_scale",
}
_ROUTER_NORM: Final = ".mlp.router.norm.weight"


def _tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    def experts(layer: int, part: str, kind: str) -> tuple[Piece, ...]:
        held = decoder.layer(layer).experts
        assert held is not None
        return fused_under(f"model.layers.{layer}.experts", part.removesuffix("_proj"), held)

    parts = {**_PARTS, "mlp.router.norm": "router.scale"}
    projection = Stored("model.per_layer_model_projection", scale=decoder.hidden_size**-0.5)
    top = {**_TOP, "model.layer_inputs_proj": projection}
    tensors = by_module(decoder, top, "model.layers.{}.", parts, experts)
    for name, tensor in tensors.items():
        if name.endswith(_ROUTER_NORM):
            # The norm's weight is stored without the factor that comes with it.
            stored = tensor.pieces[0].name.removesuffix(".weight")
            tensors[name] = Tensor("vector", tensor.shape, (Piece(stored, scale=decoder.hidden_size**-0.5),))
    return tensors


def _wrapped(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Tensors as published, with the towers of a multimodal model."""
    return prefixed(_tensors(config, decoder), "model.", "model.language_model.")


_OTHERS: Final = (
    "*rotary_emb.*", "*vision_tower.*", "*audio_tower.*", "*embed_vision.*", "*embed_audio.*", "*vision_embedder.*",
    "*multi_modal_projector.*",
)  # fmt: skip

GEMMA4: Final = Family(
    ("gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"),
    "Gemma4ForCausalLM",
    _describe,
    _tensors,
    _OTHERS,
    alternatives=(_wrapped,),
)
