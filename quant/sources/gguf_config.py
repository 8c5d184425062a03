"""Converts GGUF metadata to Hugging Face's config.json, for the architectures that this engine runs.

Reads no tensors' values, except the RoPE frequency factors, which is how a GGUF stores Llama 3's scaling.
Source of the key names: ggml's docs/gguf.md; of Llama 3's formula: transformers' modeling_rope_utils.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from quant.codes.matrix import F32
from quant.errors import SourceError, UnsupportedModelError
from quant.families.standard import MOST_LAYERS
from quant.sources.gguf_architectures import ARCHITECTURES
from quant.sources.gguf_experts import experts_config
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata

_MODEL_CLASSES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
}
_MODEL_TYPES: Final = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
"""Hugging Face's model types, where they differ from the architecture's name."""
_SCALING_KEYS: Final = ("type", "factor", "original_context_length", "finetuned", "yarn_beta_fast", "yarn_beta_slow")
_LLAMA3_CONTEXTS: Final = (8192, 4096, 16384, 32768, 131072)


def hf_config(gguf: GgufFile, rope_factors: F32 | None) -> dict[str, Any]:
    """The config.json of a GGUF. rope_factors: its `rope_freqs.weight` [head_dim / 2], if it has one.

    Raises:
        UnsupportedModelError: an architecture or an option that this engine does not run, by name.
        SourceError: missing or ill-typed metadata, by key.
    """
    metadata = Metadata(gguf)
    arch = metadata.text("general.architecture")
    architecture = ARCHITECTURES.get(arch)
    if arch not in _MODEL_CLASSES and architecture is None:
        known = ", ".join((*_MODEL_CLASSES, *ARCHITECTURES))
        raise UnsupportedModelError(f"{gguf.path}: architecture {arch!r} is not supported; supported: {known}")
    hidden = metadata.integer(f"{arch}.embedding_length")
    heads = metadata.integer(f"{arch}.attention.head_count")
    if not heads or (hidden % heads and f"{arch}.attention.key_length" not in metadata):
        raise SourceError(f"{gguf.path}: {heads} heads do not divide a hidden size of {hidden}")
    head_dim = metadata.integer(f"{arch}.attention.key_length", hidden // heads)
    has_latents = architecture is not None and architecture.has_latents
    if not has_latents and metadata.integer(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{gguf.path}: keys and values of different sizes are not supported")
    if architecture is None and metadata.integer(f"{arch}.rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(f"{gguf.path}: rotary embedding of a part of the head is not supported")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise SourceError(f"{gguf.path}: lacks the tensor 'token_embd.weight'")
    theta, kv_heads = metadata.number(f"{arch}.rope.freq_base", 10000.0), f"{arch}.attention.head_count_kv"
    layers = metadata.integer(f"{arch}.block_count")
    listed = min(max(layers, 1), MOST_LAYERS)  # others are refused later
    config: dict[str, Any] = {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _inner_size(gguf, arch, metadata),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": next((each for each in metadata.integers(kv_heads, listed, heads) if each), heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer(f"{arch}.context_length"),
        "rope_theta": theta,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    if architecture is not None:
        if not architecture.has_experts and metadata.integer(f"{arch}.expert_count", 0):
            raise UnsupportedModelError(
                f"{gguf.path}: experts in models of the architecture {arch!r} are not supported"
            )
        config |= architecture.config(metadata, gguf)
    else:
        config |= {
            "architectures": [_MODEL_CLASSES[arch]],
            "model_type": _MODEL_TYPES.get(arch, arch),
            "hidden_act": "silu",
            "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
            "mlp_bias": False,
            **experts_config(gguf, arch, metadata),
        }
    if architecture is None or architecture.scales_rope:
        config["rope_scaling"] = _rope_scaling(gguf, arch, metadata, rope_factors, theta, head_dim)
    for name in ("bos", "eos", "padding"):
        if f"tokenizer.ggml.{name}_token_id" in metadata:
            token_id = metadata.integer(f"tokenizer.ggml.{name}_token_id")
            config["pad_token_id" if name == "padding" else f"{name}_token_id"] = token_id
    return config


def _inner_size(gguf: GgufFile, arch: str, metadata: Metadata) -> int:
    """Inner size of the layers' MLP; 0 if the first layer has only experts and the file does not say it."""
    has_mlp = "blk.0.ffn_gate_exps.weight" not in gguf.tensors or "blk.0.ffn_down.weight" in gguf.tensors
    return metadata.integer(f"{arch}.feed_forward_length", None if has_mlp else 0)


def _rope_scaling(
    gguf: GgufFile, arch: str, metadata: Metadata, factors: F32 | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    prefix = f"{arch}.rope.scaling"
    for key in gguf.metadata:
        if key.startswith(f"{prefix}.") and key.removeprefix(f"{prefix}.") not in _SCALING_KEYS:
            raise UnsupportedModelError(f"{gguf.path}: metadata key {key!r} is not supported")
    kind = metadata.text(f"{prefix}.type", "none")
    if factors is not None:
        if kind != "none":
            raise UnsupportedModelError(f"{gguf.path}: RoPE factors together with {kind!r} scaling are not supported")
        return _llama3_scaling(gguf, factors, theta, head_dim)
    if kind == "none":
        old_style = metadata.number(f"{arch}.rope.scale_linear", 1.0)
        return None if old_style == 1.0 else {"rope_type": "linear", "factor": old_style}
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.number(f"{prefix}.factor")}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": metadata.number(f"{prefix}.factor"),
            "original_max_position_embeddings": metadata.integer(f"{prefix}.original_context_length"),
            **{
                key: metadata.number(f"{prefix}.yarn_{key}")
                for key in ("beta_fast", "beta_slow")
                if f"{prefix}.yarn_{key}" in metadata
            },
        }
    raise UnsupportedModelError(f"{gguf.path}: RoPE scaling {kind!r} is not supported; supported: linear, yarn, llama3")


def _llama3_scaling(gguf: GgufFile, factors: F32, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling parameters from its factors: tries the published ones. Raises if none match."""
    if factors.shape != (head_dim // 2,):
        raise SourceError(f"{gguf.path}: 'rope_freqs.weight' has the shape {factors.shape}, not {(head_dim // 2,)}")
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": float(factors.max())}
    for context in _LLAMA3_CONTEXTS:
        scaling |= {
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": context,
        }
        if np.allclose(llama3_factors(scaling, theta, head_dim), factors, rtol=1e-4):
            return scaling
    raise UnsupportedModelError(f"{gguf.path}: the RoPE factors in 'rope_freqs.weight' are not those of Llama 3")


def llama3_factors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> F32:
    """The divisors of the RoPE frequencies in Llama 3's scaling, fp32 [head_dim / 2]."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    smooth = (scaling["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    factors: F32 = (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)
    return factors
