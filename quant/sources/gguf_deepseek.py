"""GGUF's architecture deepseek2: DeepSeek-V2 and V3 and GLM-4.7-Flash, their metadata as Hugging Face's, their tensors.

Sources: llama.cpp's conversion/deepseek.py, conversion/glm.py and src/models/deepseek2.cpp. Newer files hold heads'
keys turned and values apart from them, older ones both in one matrix. Does not decode tensors.
"""

from collections.abc import Collection
from typing import Any, Final

from quant.errors import SourceError, UnsupportedModelError
from quant.families.deepseek import attention_pieces
from quant.families.description import Decoder
from quant.families.family import Piece
from quant.families.modules import module_and_kind
from quant.families.standard import MOST_LAYERS
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata

ARCH: Final = "deepseek2"
_SOFTMAX, _SIGMOID = 1, 2
_SCALING_KEYS: Final = (
    "type", "factor", "original_context_length", "finetuned", "yarn_log_multiplier", "yarn_beta_fast", "yarn_beta_slow",
)  # fmt: skip
_ATTENTION: Final = {
    "q": "attn_q", "q_a": "attn_q_a", "q_b": "attn_q_b", "kv_a": "attn_kv_a_mqa", "o": "attn_output",
    "key_up": "attn_k_b", "value_up": "attn_v_b",
}  # fmt: skip
_NORMS: Final = {"self_attn.q_a_norm": "attn_q_a_norm", "self_attn.kv_a_norm": "attn_kv_a_norm"}


def deepseek_config(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    """The keys of Hugging Face's configuration. Raises SourceError, UnsupportedModelError."""
    predicting = _predicting_layers(metadata)
    layers = metadata.integer(f"{ARCH}.block_count") - predicting
    if layers < 1 or predicting > MOST_LAYERS:
        raise SourceError(f"{gguf.path}: metadata key '{ARCH}.nextn_predict_layers' is {predicting}, too many")
    if metadata.number(f"{ARCH}.attention.temperature_scale", 0.0):
        raise UnsupportedModelError(f"{gguf.path}: metadata key '{ARCH}.attention.temperature_scale' is not supported")
    rope_dim = metadata.integer(f"{ARCH}.rope.dimension_count")
    key = metadata.integer(f"{ARCH}.attention.key_length_mla", metadata.integer(f"{ARCH}.attention.key_length"))
    value = metadata.integer(f"{ARCH}.attention.value_length_mla", metadata.integer(f"{ARCH}.attention.value_length"))
    return {
        "num_hidden_layers": layers,
        "num_key_value_heads": metadata.integer(f"{ARCH}.attention.head_count"),
        "head_dim": rope_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": metadata.number(f"{ARCH}.attention.layer_norm_rms_epsilon"),
        "q_lora_rank": metadata.integer(f"{ARCH}.attention.q_lora_rank", 0) or None,
        "kv_lora_rank": metadata.integer(f"{ARCH}.attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key - rope_dim,
        "v_head_dim": value,
        "first_k_dense_replace": metadata.integer(f"{ARCH}.leading_dense_block_count", 0),
        "rope_scaling": _scaling(metadata, gguf),
        **_experts(metadata, gguf, layers),
    }


def deepseek_pieces(decoder: Decoder, names: Collection[str], layer: int, name: str) -> tuple[Piece, ...] | None:
    """The stored rows of a layer's tensor, or None where its name and rows are the usual ones. names: the file's."""
    part, kind = module_and_kind(name)
    if part in _NORMS:
        return (Piece(f"blk.{layer}.{_NORMS[part]}.{kind}"),)
    matrix = part.removeprefix("self_attn.").removesuffix("_proj")
    latent = decoder.layer(layer).latent
    if not part.startswith("self_attn.") or matrix not in _ATTENTION or latent is None:
        return None
    stored, both = f"blk.{layer}.{_ATTENTION[matrix]}.{kind}", f"blk.{layer}.attn_kv_b.weight"
    if matrix in ("key_up", "value_up") and both not in names:
        return (Piece(stored),)
    return attention_pieces(stored, both, matrix, latent, decoder.heads, is_interleaved=True)


def _predicting_layers(metadata: Metadata) -> int:
    return metadata.integer(f"{ARCH}.nextn_predict_layers", 0)


def _experts(metadata: Metadata, gguf: GgufFile, layers: int) -> dict[str, Any]:
    corrected = any(f"blk.{number}.exp_probs_b.bias" in gguf.tensors for number in range(min(layers, MOST_LAYERS)))
    scoring = metadata.integer(f"{ARCH}.expert_gating_func", 0) or (_SIGMOID if corrected else _SOFTMAX)
    if (scoring == _SIGMOID) != corrected:
        reason = "with" if corrected else "without"
        raise UnsupportedModelError(
            f"{gguf.path}: metadata key '{ARCH}.expert_gating_func' is {scoring} in a file {reason} exp_probs_b; early"
            " files of GLM-4.7-Flash were wrong there: get a newer one"
        )
    kind = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    if not corrected:
        kind = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    count = metadata.integer(f"{ARCH}.expert_count", 0)
    if not count:
        return {**kind, "first_k_dense_replace": layers}
    groups = metadata.integer(f"{ARCH}.expert_group_count", 1) or 1
    method = "noaux_tc" if corrected else "group_limited_greedy" if groups > 1 else "greedy"
    return {
        **kind,
        "n_routed_experts": count,
        "num_experts_per_tok": metadata.integer(f"{ARCH}.expert_used_count"),
        "moe_intermediate_size": metadata.integer(f"{ARCH}.expert_feed_forward_length"),
        "n_shared_experts": metadata.integer(f"{ARCH}.expert_shared_count", 0),
        "routed_scaling_factor": metadata.number(f"{ARCH}.expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": metadata.flag(f"{ARCH}.expert_weights_norm", False),
        "topk_method": method,
        "n_group": groups,
        "topk_group": metadata.integer(f"{ARCH}.expert_group_used_count", 1) or 1,
    }


def _scaling(metadata: Metadata, gguf: GgufFile) -> dict[str, Any] | None:
    """A file has a tenth of `mscale_all_dim`; `mscale` is the same in all models of this architecture."""
    prefix = f"{ARCH}.rope.scaling"
    for key in gguf.metadata:
        if key.startswith(f"{prefix}.") and key.removeprefix(f"{prefix}.") not in _SCALING_KEYS:
            raise UnsupportedModelError(f"{gguf.path}: metadata key {key!r} is not supported")
    kind = metadata.text(f"{prefix}.type", "none")
    if kind == "none":
        return None
    if kind != "yarn":
        raise UnsupportedModelError(f"{gguf.path}: RoPE scaling {kind!r} is not supported; supported: yarn")
    scaling = {
        "rope_type": "yarn",
        "factor": metadata.number(f"{prefix}.factor"),
        "original_max_position_embeddings": metadata.integer(f"{prefix}.original_context_length"),
        "beta_fast": metadata.number(f"{prefix}.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number(f"{prefix}.yarn_beta_slow", 1.0),
    }
    mscale = round(10 * metadata.number(f"{prefix}.yarn_log_multiplier", 0.0), 6)
    return {**scaling, "mscale": mscale, "mscale_all_dim": mscale} if mscale else scaling
