"""GGUF's architectures beyond Llama's: their own metadata keys as Hugging Face's, their own names of tensors.

Sources: llama.cpp's convert_hf_to_gguf.py, llama-arch.cpp and llama-model.cpp. Does not decode tensors, but for the
divisors of Phi-3's rotary frequencies.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Decoder
from quant.families.family import Piece
from quant.families.modules import Modules, Stored
from quant.sources.gguf_deepseek import deepseek_config, deepseek_pieces
from quant.sources.gguf_encoders import bert_config, bert_parts, nomic_bert_config, nomic_bert_parts
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_gemma4 import gemma4_config, gemma4_pieces
from quant.sources.gguf_hybrids import hybrid_config, qwen3next_parts, qwen35_parts
from quant.sources.gguf_lfm2 import lfm2_config, lfm2_parts
from quant.sources.gguf_metadata import Metadata

Config = Callable[[Metadata, GgufFile], dict[str, Any]]
LayerPieces = Callable[[Decoder, Collection[str], int, str], tuple[Piece, ...] | None]
"""(description, the file's tensors, a layer, a tensor's name in it) -> its stored rows; None: the usual ones."""
Parts = Callable[[Decoder], Modules]


def _no_parts(_: Decoder) -> Modules:
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of GGUF's architectures."""

    config: Config
    """Keys of Hugging Face's configuration that differ between architectures."""
    parts: Parts = _no_parts
    """Modules whose names or rows are not the usual ones, by the engine's name; a layer's without its prefix."""
    permuted: bool = False
    """Whether Q and K rows are stored as adjacent pairs."""
    scales_rope: bool = True
    """Whether the keys rope.scaling mean what they do for Llama."""
    has_experts: bool = False
    has_latents: bool = False
    """Whether keys and values come from a latent, so that their size keys have another meaning."""
    pieces: LayerPieces | None = None
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that the engine does not need."""


def _rms(metadata: Metadata, arch: str) -> dict[str, Any]:
    return {"rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon")}


def _layer_norm(metadata: Metadata, arch: str) -> float:
    return metadata.number(f"{arch}.attention.layer_norm_epsilon", 1e-5)


def _gemma(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    return {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", **_rms(metadata, "gemma")}


def _mistral3(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    """Ministral 3, and Mistral that was published as a part of Mistral 3."""
    prefix = "mistral3.rope.scaling"
    kind = metadata.text(f"{prefix}.type", "none")
    if kind not in ("none", "yarn"):
        raise UnsupportedModelError(f"{gguf.path}: RoPE scaling {kind!r} is not supported; supported: yarn")
    rope: dict[str, Any] = {"rope_type": "default"}
    if kind == "yarn":
        rope = {
            "rope_type": "yarn",
            "factor": metadata.number(f"{prefix}.factor"),
            "original_max_position_embeddings": metadata.integer(f"{prefix}.original_context_length"),
            "beta_fast": metadata.number(f"{prefix}.yarn_beta_fast", 32.0),
            "beta_slow": metadata.number(f"{prefix}.yarn_beta_slow", 1.0),
            "mscale": 1.0,
            "mscale_all_dim": metadata.number(f"{prefix}.yarn_log_multiplier", 0.0),
        }
    rope["llama_4_scaling_beta"] = metadata.number("mistral3.attention.temperature_scale", 0.0)
    return {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "hidden_act": "silu",
        "rope_scaling": rope,
        **_rms(metadata, "mistral3"),
    }


def _gemma2(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "sliding_window": metadata.integer("gemma2.attention.sliding_window", 4096),
        "attn_logit_softcapping": metadata.number("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("gemma2.final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(metadata, "gemma2", 46),
        **_rms(metadata, "gemma2"),
    }


def _gemma3(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window": metadata.integer("gemma3.attention.sliding_window", 1024),
        "rope_theta": metadata.number("gemma3.rope.freq_base", 1e6),
        "rope_local_base_freq": metadata.number("gemma3.rope.freq_base_swa", 10000.0),
        "query_pre_attn_scalar": _query_scalar(metadata, "gemma3", 62),
        **_rms(metadata, "gemma3"),
    }
    if "gemma3.final_logit_softcapping" in metadata:
        config["final_logit_softcapping"] = metadata.number("gemma3.final_logit_softcapping")
    return config


def _query_scalar(metadata: Metadata, arch: str, layers_of_27b: int) -> int:
    """The number whose root divides the attention scores; only in the 27B models is it not the head size."""
    heads, hidden = metadata.integer(f"{arch}.attention.head_count"), metadata.integer(f"{arch}.embedding_length")
    if metadata.integer(f"{arch}.block_count") == layers_of_27b:
        return hidden // heads
    return metadata.integer(f"{arch}.attention.key_length", hidden // heads)


def _gpt_oss(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": metadata.integer("gpt-oss.expert_feed_forward_length"),
        "num_local_experts": metadata.integer("gpt-oss.expert_count"),
        "num_experts_per_tok": metadata.integer("gpt-oss.expert_used_count"),
        "sliding_window": metadata.integer("gpt-oss.attention.sliding_window", 128),
        "attention_bias": True,
        **_rms(metadata, "gpt-oss"),
    }
    # The model was trained with YaRN's ramp between dimensions that are not rounded, which GGUF has no key for.
    if metadata.text("gpt-oss.rope.scaling.type", "none") == "yarn":
        config["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": metadata.number("gpt-oss.rope.scaling.factor"),
            "original_max_position_embeddings": metadata.integer("gpt-oss.rope.scaling.original_context_length"),
            "truncate": False,
        }
    else:
        config["rope_scaling"] = {"rope_type": "default"}
    return config


def _phi3(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    heads, hidden = metadata.integer("phi3.attention.head_count"), metadata.integer("phi3.embedding_length")
    head_dim = metadata.integer("phi3.attention.key_length", hidden // max(heads, 1))
    rotary_dim = metadata.integer("phi3.rope.dimension_count", head_dim)
    config: dict[str, Any] = {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "partial_rotary_factor": rotary_dim / max(head_dim, 1),
        "sliding_window": metadata.integer("phi3.attention.sliding_window", 0) or None,
        **_rms(metadata, "phi3"),
    }
    factors = {
        key: _small_vector(gguf, f"rope_factors_{length}.weight")
        for key, length in (("short_factor", "short"), ("long_factor", "long"))
        if f"rope_factors_{length}.weight" in gguf.tensors
    }
    if factors:
        config["original_max_position_embeddings"] = metadata.integer("phi3.rope.scaling.original_context_length")
        config["rope_scaling"] = {"rope_type": "longrope", **factors}
        if "phi3.rope.scaling.attn_factor" in metadata:
            config["rope_scaling"]["attention_factor"] = metadata.number("phi3.rope.scaling.attn_factor")
    return config


def _small_vector(gguf: GgufFile, name: str) -> list[float]:
    tensor = gguf.tensors[name]
    if tensor.type_name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 1024:
        raise SourceError(f"{gguf.path}: tensor {name!r} is {tensor.type_name} {tensor.shape}, not a short F32 vector")
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        values = np.frombuffer(file.read(4 * tensor.shape[0]), np.float32)
    return [float(str(value)) for value in values]


def _olmo2(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    if metadata.integer("olmo2.attention.sliding_window", 0):
        raise UnsupportedModelError(f"{gguf.path}: OLMo 3 is read from Hugging Face folders only")
    return {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_act": "silu", **_rms(metadata, "olmo2"),
    }  # fmt: skip


def _granite(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "embedding_multiplier": metadata.number("granite.embedding_scale", 1.0),
        "residual_multiplier": metadata.number("granite.residual_scale", 1.0),
        "attention_multiplier": metadata.number("granite.attention.scale", 1.0),
        "logits_scaling": metadata.number("granite.logit_scale", 1.0),
        **_rms(metadata, "granite"),
    }


def _smollm3(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_act": "silu",
        **_rms(metadata, "smollm3"),
    }  # fmt: skip


def _falcon(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    # In a GGUF, one architecture for all: any number of key-value heads, with one norm or two.
    return {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "new_decoder_architecture": True,
        "num_kv_heads": metadata.integer("falcon.attention.head_count_kv", 1),
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in gguf.tensors else 1,
        "ffn_hidden_size": metadata.integer("falcon.feed_forward_length"),
        "layer_norm_epsilon": _layer_norm(metadata, "falcon"),
    }


def _bloom(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom",
        "layer_norm_epsilon": _layer_norm(metadata, "bloom"),
    }  # fmt: skip


def _mpt(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    if metadata.number("mpt.attention.clamp_kqv", 0.0):
        raise UnsupportedModelError(f"{gguf.path}: mpt.attention.clamp_kqv is not supported")
    alibi = metadata.number("mpt.attention.max_alibi_bias", 0.0)
    return {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "expansion_ratio": metadata.integer("mpt.feed_forward_length") // metadata.integer("mpt.embedding_length"),
        "layer_norm_epsilon": _layer_norm(metadata, "mpt"),
        "attn_config": {"alibi": alibi > 0, **({"alibi_bias_max": alibi} if alibi else {})},
    }


def _gpt_neox(metadata: Metadata, _: GgufFile) -> dict[str, Any]:
    heads = metadata.integer("gptneox.attention.head_count")
    head_dim = metadata.integer("gptneox.embedding_length") // max(heads, 1)
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "partial_rotary_factor": metadata.integer("gptneox.rope.dimension_count", head_dim) / max(head_dim, 1),
        "use_parallel_residual": metadata.flag("gptneox.use_parallel_residual", True),
        "layer_norm_eps": _layer_norm(metadata, "gptneox"),
    }


def fused(decoder: Decoder) -> dict[str, Stored]:
    """Queries, keys and values in one matrix, one after the other."""
    queries, keys = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    ends = {"q": (0, queries), "k": (queries, queries + keys), "v": (queries + keys, queries + 2 * keys)}
    return {f"self_attn.{part}_proj": Stored("attn_qkv", slice(*ends[part])) for part in "qkv"}


def _phi3_parts(decoder: Decoder) -> dict[str, Stored]:
    mlp = decoder.layer(0).mlp
    inner = mlp.inner if mlp is not None else 0
    return {
        **fused(decoder),
        "mlp.gate_proj": Stored("ffn_up", slice(0, inner)),
        "mlp.up_proj": Stored("ffn_up", slice(inner, 2 * inner)),
    }


def _falcon_parts(decoder: Decoder) -> dict[str, Stored]:
    if not decoder.layer(0).mlp_norm:
        return fused(decoder)
    norms = {"input_layernorm": Stored("attn_norm_2"), "post_attention_layernorm": Stored("attn_norm")}
    return {**fused(decoder), **norms}


def _gpt_oss_parts(_: Decoder) -> dict[str, Stored]:
    return {"post_attention_layernorm": Stored("post_attention_norm")}


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "bert": Architecture(bert_config, bert_parts, scales_rope=False),
    "nomic-bert": Architecture(nomic_bert_config, nomic_bert_parts),
    "gemma": Architecture(_gemma),
    "gemma2": Architecture(_gemma2),
    "gemma3": Architecture(_gemma3),
    "gemma4": Architecture(gemma4_config, scales_rope=False, has_experts=True, pieces=gemma4_pieces),
    "gpt-oss": Architecture(_gpt_oss, _gpt_oss_parts, scales_rope=False, has_experts=True),
    "phi3": Architecture(_phi3, _phi3_parts, scales_rope=False, ignored=("rope_factors_*.weight",)),
    "mistral3": Architecture(_mistral3, permuted=True, scales_rope=False),
    "olmo2": Architecture(_olmo2),
    "granite": Architecture(_granite, permuted=True),
    "smollm3": Architecture(_smollm3, permuted=True),
    "falcon": Architecture(_falcon, _falcon_parts),
    "bloom": Architecture(_bloom, fused, scales_rope=False),
    "mpt": Architecture(_mpt, fused, scales_rope=False),
    "gptneox": Architecture(_gpt_neox, fused),
    "lfm2": Architecture(lfm2_config("lfm2", "lfm2", "Lfm2ForCausalLM"), lfm2_parts),
    "lfm2moe": Architecture(lfm2_config("lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM"), lfm2_parts, has_experts=True),
    "qwen3next": Architecture(
        hybrid_config("qwen3next", "qwen3_next", "Qwen3NextForCausalLM"), qwen3next_parts, has_experts=True
    ),
    "qwen35": Architecture(hybrid_config("qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM"), qwen35_parts),
    "qwen35moe": Architecture(
        hybrid_config("qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"), qwen35_parts, has_experts=True
    ),
    "deepseek2": Architecture(
        deepseek_config, pieces=deepseek_pieces, scales_rope=False, has_experts=True, has_latents=True
    ),
}
