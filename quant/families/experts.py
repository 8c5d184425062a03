"""Qwen2-MoE, Qwen3-MoE, OLMoE and Mixtral: decoders whose MLPs are mixtures of experts.

Checkpoints store experts each by itself or, as transformers 5 has them in memory, fused in tensors of three dimensions.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Experts, Layer
from quant.families.family import Config, Family, Piece, Tensor
from quant.families.llama import ROTARY_BUFFERS, decoder_of, dense_mlp, qwen_windows
from quant.families.settings import Settings
from quant.families.standard import Sizes, activation_of, assembled, read_sizes, window_of

MOST_EXPERTS: Final = 4096
"""The engine's limit per layer."""
TILE_ROWS: Final = 32
"""Rows of an engine tile; stacked experts begin at whole tiles."""


def read_experts(settings: Settings, sizes: Sizes, inner_key: str, **options: object) -> Experts:
    """Reads a mixture. inner_key: the key of an expert's inner size. options: further fields of Experts."""
    count = settings.size("num_experts", settings.get("num_local_experts"))
    per_token, inner = settings.size("num_experts_per_tok"), settings.size(inner_key)
    if count > MOST_EXPERTS:
        raise settings.unsupported("num_experts", f"is {count}; up to {MOST_EXPERTS} are run")
    if per_token > count:
        raise settings.wrong("num_experts_per_tok", f"is {per_token}, more than the {count} experts there are")
    for key, size in ((inner_key, inner), ("hidden_size", sizes.hidden_size)):
        if size % TILE_ROWS:
            raise settings.unsupported(key, f"is {size}; of models with experts only multiples of {TILE_ROWS} are run")
    return Experts(count, per_token, inner, **{"activation": activation_of(settings), **options})  # type: ignore[arg-type]


def sparse_layers(settings: Settings, layers: int) -> list[bool]:
    """Which layers have experts, by `decoder_sparse_step` and `mlp_only_layers`."""
    step, dense = settings.size("decoder_sparse_step", 1), settings.items("mlp_only_layers")
    return [number not in dense and (number + 1) % step == 0 for number in range(layers)]


def _qwen2_moe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    bias, slides = settings.flag("qkv_bias", True), settings.flag("use_sliding_window", False)
    most = settings.count("max_window_layers", 28)
    windows = qwen_windows(settings, sizes, lambda number: slides and number % 2 == 0 and number < most)
    attentions = [Attention(1 / math.sqrt(sizes.head_dim), window=window, qkv_bias=bias) for window in windows]
    shared = settings.size("shared_expert_intermediate_size")
    return _qwen_moe(settings, sizes, attentions, shared_inner=shared, shared_gate=True)


def _qwen3_moe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    bias, slides = settings.flag("attention_bias", False), settings.flag("use_sliding_window", False)
    attention = Attention(
        1 / math.sqrt(sizes.head_dim),
        window=window_of(settings, sizes.max_positions) if slides else 0,
        qk_norm="head",
        qkv_bias=bias,
        output_bias=bias,
    )
    return _qwen_moe(settings, sizes, [attention] * sizes.layers)


def _qwen_moe(settings: Settings, sizes: Sizes, attentions: list[Attention], **shared: object) -> Decoder:
    sparse = sparse_layers(settings, sizes.layers)
    renormalize = settings.flag("norm_topk_prob", False)
    experts = mlp = None
    if any(sparse):
        experts = read_experts(settings, sizes, "moe_intermediate_size", renormalize=renormalize, **shared)
    if not all(sparse):
        mlp = dense_mlp(settings)
    layers = [
        Layer(attention, experts=experts) if is_sparse else Layer(attention, mlp)
        for attention, is_sparse in zip(attentions, sparse, strict=True)
    ]
    return decoder_of(settings, sizes, layers)


def _olmoe(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    if "clip_qkv" in settings:
        raise settings.unsupported("clip_qkv", f"is {settings.get('clip_qkv')!r}; clipping is not supported")
    bias = settings.flag("attention_bias", False)
    attention = Attention(1 / math.sqrt(sizes.head_dim), qk_norm="row", qkv_bias=bias, output_bias=bias)
    renormalize = settings.flag("norm_topk_prob", False)
    experts = read_experts(settings, sizes, "intermediate_size", renormalize=renormalize)
    return decoder_of(settings, sizes, [Layer(attention, experts=experts)] * sizes.layers)


def _mixtral(config: Config, where: str) -> Decoder:
    settings = Settings(config, where)
    sizes = read_sizes(settings)
    attention = Attention(1 / math.sqrt(sizes.head_dim), window=window_of(settings, sizes.max_positions))
    experts = read_experts(settings, sizes, "intermediate_size", renormalize=True)
    return decoder_of(settings, sizes, [Layer(attention, experts=experts)] * sizes.layers, theta=1e6)


_QWEN_NAMES: Final = {
    ".mlp.router.": ".mlp.gate.",
    ".mlp.shared.": ".mlp.shared_expert.",
    ".mlp.shared_gate.": ".mlp.shared_expert_gate.",
}
_MIXTRAL_NAMES: Final = {".mlp.router.": ".block_sparse_moe.gate."}
_MIXTRAL_MATRICES: Final = {"gate": "w1", "up": "w3", "down": "w2"}

_EXPERTS: Final = re.compile(r"(.*)\.mlp\.experts\.(gate|up|down)_proj\.weight")
ExpertPieces = Callable[[str, str, Experts], tuple[Piece, ...]]
"""(a layer's prefix, "gate", "up" or "down", the mixture) -> the stored rows of that stack."""


def with_experts(decoder: Decoder, names: Mapping[str, str], pieces_of_experts: ExpertPieces) -> dict[str, Tensor]:
    """Assembles the engine's tensors, with parts of names replaced, and experts' matrices from their own pieces."""

    def pieces(name: str) -> tuple[Piece, ...]:
        match = _EXPERTS.fullmatch(name)
        if match is not None:
            experts = decoder.layer(int(match[1].rpartition(".")[2])).experts
            assert experts is not None
            return pieces_of_experts(match[1], match[2], experts)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        return (Piece(name),)

    return assembled(decoder, pieces)


def each_by_itself(prefix: str, matrix: str, experts: Experts) -> tuple[Piece, ...]:
    """Pieces of experts that are stored as a tensor each."""
    return tuple(Piece(f"{prefix}.mlp.experts.{number}.{matrix}_proj.weight") for number in range(experts.count))


def fused(prefix: str, matrix: str, experts: Experts) -> tuple[Piece, ...]:
    """Pieces of experts that are fused in one tensor, in a layer that calls them `mlp.experts`."""
    return fused_under(f"{prefix}.mlp.experts", matrix, experts)


def fused_under(stem: str, matrix: str, experts: Experts) -> tuple[Piece, ...]:
    """Pieces of fused experts in the module `stem`.

    The tensors are `gate_up_proj` [experts, 2 inner, hidden] and `down_proj` [experts, hidden, inner].
    """
    if matrix == "down":
        return (Piece(f"{stem}.down_proj"),)
    first = 0 if matrix == "gate" else experts.inner
    rows = slice(first, first + experts.inner)
    return tuple(Piece(f"{stem}.gate_up_proj", rows, index=number) for number in range(experts.count))


def _qwen_tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return with_experts(decoder, _QWEN_NAMES, each_by_itself)


def _qwen_fused(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return with_experts(decoder, _QWEN_NAMES, fused)


def _mixtral_tensors(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    def pieces(prefix: str, matrix: str, experts: Experts) -> tuple[Piece, ...]:
        stem = f"{prefix}.block_sparse_moe.experts"
        return tuple(Piece(f"{stem}.{number}.{_MIXTRAL_MATRICES[matrix]}.weight") for number in range(experts.count))

    return with_experts(decoder, _MIXTRAL_NAMES, pieces)


QWEN2_MOE: Final = Family(
    ("qwen2_moe",), "Qwen2MoeForCausalLM", _qwen2_moe, _qwen_tensors, (ROTARY_BUFFERS,), (_qwen_fused,)
)
QWEN3_MOE: Final = Family(
    ("qwen3_moe",), "Qwen3MoeForCausalLM", _qwen3_moe, _qwen_tensors, (ROTARY_BUFFERS,), (_qwen_fused,)
)
OLMOE: Final = Family(("olmoe",), "OlmoeForCausalLM", _olmoe, _qwen_tensors, (ROTARY_BUFFERS,), (_qwen_fused,))
MIXTRAL: Final = Family(
    ("mixtral",), "MixtralForCausalLM", _mixtral, _mixtral_tensors, (ROTARY_BUFFERS,), (_qwen_fused,)
)
