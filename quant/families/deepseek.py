"""DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash: latent attention, and mixtures of experts behind some dense layers.

Formulas: DeepSeek-V2 (2024), section 2.1, and DeepSeek-V3 (2024), section 2.1.2. Keys and values of a head come from a
shared latent through matrices of its own: the engine has these as stacks, the keys' ones turned.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from quant.families.description import Attention, Decoder, Experts, Latent, Layer, Mlp
from quant.families.experts import MOST_EXPERTS, TILE_ROWS, each_by_itself, fused
from quant.families.family import Config, Family, Piece, StoredPredictor, Tensor
from quant.families.llama import ROTARY_BUFFERS
from quant.families.rope import rope_of, scores_temperature
from quant.families.rows import rotary_first
from quant.families.settings import Settings
from quant.families.standard import MOST_HEAD_DIM, Sizes, activation_of, assembled, norm_epsilon, read_sizes

_LATENT_EPSILON: Final = 1e-6
"""Epsilon of the latents' norms, whatever `rms_norm_eps` says."""


def _latent(config: Config, settings: Settings) -> Latent:
    ranks = {name: settings.size(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")}
    rope_dim = settings.size("qk_rope_head_dim")
    for key in ("kv_lora_rank", "v_head_dim"):
        if ranks[key] % TILE_ROWS:
            raise settings.unsupported(key, f"is {ranks[key]}; only multiples of {TILE_ROWS} are run")
    for key, size in ranks.items():
        if size > MOST_HEAD_DIM:
            raise settings.wrong(key, f"is {size}, more than {MOST_HEAD_DIM}")
    if rope_dim % 2 or rope_dim + ranks["kv_lora_rank"] > MOST_HEAD_DIM:
        raise settings.wrong(
            "qk_rope_head_dim", f"is {rope_dim}; it is even, and at most {MOST_HEAD_DIM} with kv_lora_rank"
        )
    if "q_lora_rank" not in config:
        raise settings.wrong("q_lora_rank", "is missing; null says that queries have no latent")
    query_rank = settings.size("q_lora_rank") if "q_lora_rank" in settings else 0
    return Latent(
        ranks["kv_lora_rank"], ranks["qk_nope_head_dim"], rope_dim, ranks["v_head_dim"], query_rank, _LATENT_EPSILON
    )


def _sizes(config: Config, where: str, latent: Latent) -> Sizes:
    """Sizes with the engine's single KV head; the file's KV heads describe keys that are not cached."""
    heads = {"num_key_value_heads": 1, "head_dim": latent.rope_dim + latent.kv_rank}
    return read_sizes(Settings({**config, **heads}, where))


def _experts(settings: Settings, sizes: Sizes, **options: Any) -> Experts:
    count, per_token = settings.size("n_routed_experts"), settings.size("num_experts_per_tok")
    inner = settings.size("moe_intermediate_size")
    if count > MOST_EXPERTS:
        raise settings.unsupported("n_routed_experts", f"is {count}; up to {MOST_EXPERTS} are run")
    if per_token > count:
        raise settings.wrong("num_experts_per_tok", f"is {per_token}, more than the {count} experts there are")
    for key, size in (("moe_intermediate_size", inner), ("hidden_size", sizes.hidden_size)):
        if size % TILE_ROWS:
            raise settings.unsupported(key, f"is {size}; of models with experts only multiples of {TILE_ROWS} are run")
    shared = settings.count("n_shared_experts", 0) * inner
    scale = settings.positive("routed_scaling_factor", 1.0)
    return Experts(
        count, per_token, inner, activation=activation_of(settings), shared_inner=shared, scale=scale, **options
    )


def _groups(settings: Settings, per_token: int, count: int, smallest: int) -> dict[str, int]:
    """Settings of expert groups. smallest: the number of experts that make a group's score."""
    groups, chosen = settings.size("n_group", 1), settings.size("topk_group", 1)
    if count % groups or (groups > 1 and count // groups < smallest):
        raise settings.wrong("n_group", f"is {groups}, which does not divide {count} experts into groups")
    if chosen > groups or count // groups * chosen < per_token:
        raise settings.wrong("topk_group", f"is {chosen}: too few or too many of {groups} groups of {count} experts")
    return {"groups": groups, "chosen_groups": chosen}


def _sigmoid_experts(settings: Settings, sizes: Sizes) -> Experts:
    """DeepSeek-V3's experts: chosen, as are groups, by bias-corrected scores, without a balancing loss."""
    settings.only("scoring_func", "sigmoid")
    settings.only("topk_method", "noaux_tc")
    count, per_token = settings.size("n_routed_experts"), settings.size("num_experts_per_tok")
    return _experts(
        settings,
        sizes,
        scoring="sigmoid",
        correction_bias=True,
        renormalize=settings.flag("norm_topk_prob", True),
        **_groups(settings, per_token, count, 2),
    )


def _softmax_experts(settings: Settings, sizes: Sizes) -> Experts:
    settings.only("scoring_func", "softmax")
    settings.only("topk_method", "greedy", "group_limited_greedy")
    settings.only("norm_topk_prob", False)
    count, per_token = settings.size("n_routed_experts"), settings.size("num_experts_per_tok")
    is_grouped = settings.text("topk_method", "greedy") == "group_limited_greedy"
    return _experts(settings, sizes, **(_groups(settings, per_token, count, 1) if is_grouped else {}))


MakeExperts = Callable[[Settings, Sizes], Experts]
IsSparse = Callable[[Settings, int], list[bool]]
"""(configuration, number of layers) -> which layers have experts."""


def _after_dense_layers(first: int) -> IsSparse:
    """Selects layers by `first_k_dense_replace`; first: its default."""

    def sparse(settings: Settings, layers: int) -> list[bool]:
        settings.only("moe_layer_freq", 1)
        dense = settings.count("first_k_dense_replace", first)
        return [number >= dense for number in range(layers)]

    return sparse


def _by_layer_types(settings: Settings, layers: int) -> list[bool]:
    if "mlp_layer_types" not in settings:
        return _after_dense_layers(1)(settings, layers)
    types = settings.items("mlp_layer_types", layers)
    for each in types:
        if each not in ("dense", "sparse"):
            raise settings.unsupported("mlp_layer_types", f"names {each!r}, which is not supported")
    return [each == "sparse" for each in types]


def _describe(
    config: Config, where: str, experts_of: MakeExperts, is_sparse: IsSparse, epsilon: float, *, partial: bool = False
) -> Decoder:
    settings = Settings(config, where)
    latent = _latent(config, settings)
    sizes = _sizes(config, where, latent)
    if settings.flag("mlp_bias", False):
        raise settings.unsupported("mlp_bias", "is true; experts with biases are not run in this family")
    bias = settings.flag("attention_bias", False)
    scale = scores_temperature(settings) / math.sqrt(latent.nope_dim + latent.rope_dim)
    attention = Attention(scale, qkv_bias=bias, output_bias=bias, latent=latent)
    sparse = is_sparse(settings, sizes.layers)
    experts = experts_of(settings, sizes) if any(sparse) else None
    mlp = None if all(sparse) else Mlp(settings.size("intermediate_size"), activation_of(settings))
    layers = [Layer(attention, experts=experts) if each else Layer(attention, mlp) for each in sparse]
    rope = rope_of(settings, latent.rope_dim, sizes.max_positions, partial=partial)
    return sizes.decoder(layers, ropes=(rope,), norm_epsilon=norm_epsilon(settings, default=epsilon))


def _deepseek_v2(config: Config, where: str) -> Decoder:
    return _describe(config, where, _softmax_experts, _after_dense_layers(0), 1e-6)


def _deepseek_v3(config: Config, where: str) -> Decoder:
    return _describe(config, where, _sigmoid_experts, _after_dense_layers(3), 1e-6)


def _glm4_moe_lite(config: Config, where: str) -> Decoder:
    return _describe(config, where, _sigmoid_experts, _by_layer_types, 1e-5, partial=True)


_NAMES: Final = {
    ".self_attn.q_a_norm.": ".self_attn.q_a_layernorm.",
    ".self_attn.kv_a_norm.": ".self_attn.kv_a_layernorm.",
    ".self_attn.kv_a_proj.": ".self_attn.kv_a_proj_with_mqa.",
    ".mlp.router.correction_bias": ".mlp.gate.e_score_correction_bias",
    ".mlp.router.": ".mlp.gate.",
    ".mlp.shared.": ".mlp.shared_experts.",
}
_LAYER: Final = re.compile(r"(model\.layers\.(\d+))\.(self_attn|mlp\.experts)\.(\w+)_proj\.(weight|bias)")


def _tensors(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return _with_experts(config, decoder, is_fused=False)


def _fused_tensors(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return _with_experts(config, decoder, is_fused=True)


def _with_experts(config: Config, decoder: Decoder, *, is_fused: bool) -> Mapping[str, Tensor]:
    interleaved = config.get("model_type") == "deepseek_v2" or config.get("rope_interleave") is not False

    def pieces(name: str) -> tuple[Piece, ...]:
        match = _LAYER.fullmatch(name)
        stored = name
        for ours, theirs in _NAMES.items():
            stored = stored.replace(ours, theirs)
        if match is None:
            return (Piece(stored),)
        layer = decoder.layer(int(match[2]))
        if match[3] == "mlp.experts":
            assert layer.experts is not None
            return (fused if is_fused else each_by_itself)(match[1], match[4], layer.experts)
        assert layer.latent is not None
        return attention_pieces(
            stored, f"{match[1]}.self_attn.kv_b_proj.weight", match[4], layer.latent, decoder.heads,
            is_interleaved=interleaved,
        )  # fmt: skip

    return assembled(decoder, pieces)


def attention_pieces(
    stored: str, key_values: str, matrix: str, latent: Latent, heads: int, *, is_interleaved: bool
) -> tuple[Piece, ...]:
    """The stored rows of one of the engine's matrices of latent attention, or of its bias.

    stored: the matrix' own name in the file; key_values: that of the heads' keys and values, [heads * (nope_dim +
    value_dim), kv_rank]. matrix: the engine's name without "_proj".
    """
    if matrix in ("q", "q_b"):
        return (Piece(stored, rotary_first(heads, latent.nope_dim, latent.rope_dim, is_interleaved=is_interleaved)),)
    if matrix == "kv_a":
        return (Piece(stored, rotary_first(1, latent.kv_rank, latent.rope_dim, is_interleaved=is_interleaved)),)
    width = latent.nope_dim + latent.value_dim
    if matrix == "key_up":
        own = [slice(head * width, head * width + latent.nope_dim) for head in range(heads)]
        return tuple(Piece(key_values, transposed=True, cols=each) for each in own)
    if matrix == "value_up":
        own = [slice(head * width + latent.nope_dim, (head + 1) * width) for head in range(heads)]
        return tuple(Piece(key_values, each) for each in own)
    return (Piece(stored),)


_PREDICTOR: Final = StoredPredictor(
    layer="model.layers.{}.",
    embedding_norm="model.layers.{}.enorm.weight",
    hidden_norm="model.layers.{}.hnorm.weight",
    projection="model.layers.{}.eh_proj.weight",
    output_norm="model.layers.{}.shared_head.norm.weight",
)
DEEPSEEK_V2: Final = Family(
    ("deepseek_v2",),
    "DeepseekV2ForCausalLM",
    _deepseek_v2,
    _tensors,
    (ROTARY_BUFFERS,),
    (_fused_tensors,),
    brings_code=True,
)
DEEPSEEK_V3: Final = Family(
    ("deepseek_v3",),
    "DeepseekV3ForCausalLM",
    _deepseek_v3,
    _tensors,
    (ROTARY_BUFFERS,),
    (_fused_tensors,),
    brings_code=True,
    predicts=True,
    predictor=_PREDICTOR,
)
GLM4_MOE_LITE: Final = Family(
    ("glm4_moe_lite",),
    "Glm4MoeLiteForCausalLM",
    _glm4_moe_lite,
    _tensors,
    (ROTARY_BUFFERS,),
    (_fused_tensors,),
    predicts=True,
    predictor=_PREDICTOR,
)
