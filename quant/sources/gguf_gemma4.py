"""GGUF's architecture gemma4: its metadata as Hugging Face's keys, and its tensors that are not simply renamed.

Sources: llama.cpp's convert_hf_to_gguf.py and gguf-py. Reads no tensors' values, but for the divisors of the rotary
frequencies, which say which of them are 0.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Decoder
from quant.families.family import Piece
from quant.families.standard import MOST_LAYERS
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata

_ARCH: Final = "gemma4"
_UNROTATED: Final = 1e29
"""A frequency with a larger divisor is 0."""
_NAMES: Final = {
    "dense_output_norm.weight": "post_ffw_norm_1.weight",
    "experts_norm.weight": "pre_ffw_norm_2.weight",
    "experts_output_norm.weight": "post_ffw_norm_2.weight",
    "scale": "layer_output_scale.weight",
    "mlp.router.expert_scale": "ffn_down_exps.scale",
}
_FUSED: Final = ("mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight")


def gemma4_config(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    """The keys of Hugging Face's configuration that are not the same for all architectures."""
    layers = metadata.integer(f"{_ARCH}.block_count")
    if not 0 < layers <= MOST_LAYERS:
        raise SourceError(f"{gguf.path}: metadata key '{_ARCH}.block_count' is {layers}, not in 1 .. {MOST_LAYERS}")
    for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        if metadata.integer(f"{_ARCH}.{key}", 0):
            raise UnsupportedModelError(
                f"{gguf.path}: metadata key '{_ARCH}.{key}': such models are read from Hugging Face folders only"
            )
    slides = metadata.numbers(f"{_ARCH}.attention.sliding_window_pattern", layers)
    if slides is None:
        raise SourceError(f"{gguf.path}: lacks the metadata key '{_ARCH}.attention.sliding_window_pattern'")
    kv_heads = metadata.integers(f"{_ARCH}.attention.head_count_kv", layers)
    local, full = int(np.argmax(slides)), int(np.argmin(slides))
    full_head_dim = metadata.integer(f"{_ARCH}.attention.key_length")
    rope = {"rope_type": "proportional", "rope_theta": metadata.number(f"{_ARCH}.rope.freq_base", 1e6)}
    config: dict[str, Any] = {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "num_key_value_heads": kv_heads[local],
        "num_global_key_value_heads": kv_heads[full],
        "head_dim": metadata.integer(f"{_ARCH}.attention.key_length_swa", full_head_dim),
        "global_head_dim": full_head_dim,
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in gguf.tensors,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "sliding_window": metadata.integer(f"{_ARCH}.attention.sliding_window"),
        "hidden_size_per_layer_input": 0,
        "rms_norm_eps": metadata.number(f"{_ARCH}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "full_attention": {**rope, "partial_rotary_factor": _rotated_share(gguf, full_head_dim)},
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.number(f"{_ARCH}.rope.freq_base_swa", 10000.0),
            },
        },
    }
    if f"{_ARCH}.final_logit_softcapping" in metadata:
        config["final_logit_softcapping"] = metadata.number(f"{_ARCH}.final_logit_softcapping")
    count = metadata.integer(f"{_ARCH}.expert_count", 0)
    if count:
        config |= {
            "enable_moe_block": True,
            "num_experts": count,
            "top_k_experts": metadata.integer(f"{_ARCH}.expert_used_count"),
            "moe_intermediate_size": metadata.integer(f"{_ARCH}.expert_feed_forward_length"),
        }
    return config


def _rotated_share(gguf: GgufFile, head_dim: int) -> float:
    """The part of a head of full attention whose frequencies are not 0."""
    name = "rope_freqs.weight"
    tensor = gguf.tensors.get(name)
    if tensor is None:
        return 1.0
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise SourceError(
            f"{gguf.path}: tensor {name!r} is {tensor.type_name} {tensor.shape}, not F32 ({head_dim // 2},)"
        )
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        divisors = np.frombuffer(file.read(4 * tensor.shape[0]), np.float32)
    rotated = int((divisors < _UNROTATED).sum())
    if not rotated or not (divisors[:rotated] == 1).all():
        raise SourceError(f"{gguf.path}: tensor {name!r} is not ones and then what stands for no rotation")
    return rotated / len(divisors)


def gemma4_pieces(decoder: Decoder, _: Collection[str], layer: int, part: str) -> tuple[Piece, ...] | None:
    """The stored rows of a layer's tensor; None: it is renamed like other architectures'."""
    block = f"blk.{layer}"
    if part in _NAMES:
        return (Piece(f"{block}.{_NAMES[part]}"),)
    if part == "mlp.router.norm.weight":
        return (Piece(f"{block}.ffn_gate_inp.scale", scale=decoder.hidden_size**-0.5),)
    experts = decoder.layer(layer).experts
    if part not in _FUSED or experts is None:
        return None
    first = _FUSED.index(part) * experts.inner
    rows = slice(first, first + experts.inner)
    return tuple(Piece(f"{block}.ffn_gate_up_exps.weight", rows, index) for index in range(experts.count))
