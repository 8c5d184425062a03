"""GGUFs of Gated DeltaNet models (Qwen3-Next, Qwen3.5): their metadata as Hugging Face's keys, their names and orders.

Sources: llama.cpp's conversion/qwen.py and models/qwen3next.cpp, qwen35.cpp and qwen35moe.cpp. Norms are stored with
their + 1, and -exp(A_log) for A_log. Qwen3.5's value heads are not stored by key head, but every key head's first, then
every one's second, and so on. Multi-token prediction blocks come after the layers, and are left out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from quant.errors import SourceError
from quant.families.description import Decoder, DeltaNet
from quant.families.modules import Modules, Stored
from quant.families.qwen3_next import beta_and_decay, delta_of, query_and_gate
from quant.families.rows import Rows, from_tiled_heads
from quant.families.standard import MOST_LAYERS
from quant.sources.gguf_experts import experts_config
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata


def hybrid_config(arch: str, model_type: str, name: str) -> Callable[[Metadata, GgufFile], dict[str, Any]]:
    """Makes the function that reads one of these architectures' keys. name: transformers' class."""

    def config(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
        blocks, guessing = (metadata.integer(f"{arch}.{key}", 0) for key in ("block_count", "nextn_predict_layers"))
        layers = blocks - guessing
        if layers < 1:
            raise SourceError(f"{gguf.path}: of {blocks} blocks, {guessing} are said to guess further tokens")
        head_dim = max(metadata.integer(f"{arch}.attention.key_length"), 1)
        value_heads = metadata.integer(f"{arch}.ssm.time_step_rank")
        return {
            "architectures": [name],
            "model_type": model_type,
            "hidden_act": "silu",
            "num_hidden_layers": layers,
            "layer_types": [
                "linear_attention" if f"blk.{number}.ssm_conv1d.weight" in gguf.tensors else "full_attention"
                for number in range(min(layers, MOST_LAYERS))
            ],
            "partial_rotary_factor": metadata.integer(f"{arch}.rope.dimension_count", head_dim // 4) / head_dim,
            "linear_conv_kernel_dim": metadata.integer(f"{arch}.ssm.conv_kernel"),
            "linear_key_head_dim": metadata.integer(f"{arch}.ssm.state_size"),
            "linear_num_key_heads": metadata.integer(f"{arch}.ssm.group_count"),
            "linear_num_value_heads": value_heads,
            "linear_value_head_dim": metadata.integer(f"{arch}.ssm.inner_size") // max(value_heads, 1),
            "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            **experts_config(gguf, arch, metadata),
        }

    return config


def qwen3next_parts(decoder: Decoder) -> Modules:
    """Modules of a file with value heads ordered by key head."""
    delta = delta_of(decoder)
    if delta is None:
        return _attention(decoder)
    return {
        **_attention(decoder),
        **beta_and_decay(delta, "ssm_ba"),
        "delta.qkv_proj": "attn_qkv",
        "delta.gate_proj": "attn_gate",
        "delta.conv": "ssm_conv1d",
        "delta.decay": Stored("ssm_a", scale=-1.0),
        "delta.decay_bias": "ssm_dt.bias",
        "delta.norm": "ssm_norm",
        "delta.output_proj": "ssm_out",
    }


def qwen35_parts(decoder: Decoder) -> Modules:
    """Modules of a file with interleaved value heads: restores rows, and inputs of the output projection."""
    delta = delta_of(decoder)
    if delta is None:
        return _attention(decoder)
    heads, numbers = _tiled(delta, delta.value_dim), _tiled(delta, 1)
    keys = 2 * delta.key_heads * delta.key_dim
    channels = np.concatenate([np.arange(keys), keys + heads])
    taps = (channels[:, None] * delta.taps + np.arange(delta.taps)).reshape(-1)
    return {
        **_attention(decoder),
        "delta.qkv_proj": Stored("attn_qkv", channels),
        "delta.gate_proj": Stored("attn_gate", heads),
        "delta.beta_proj": Stored("ssm_beta", numbers),
        "delta.decay_proj": Stored("ssm_alpha", numbers),
        "delta.conv": Stored("ssm_conv1d", taps),
        "delta.decay": Stored("ssm_a", numbers, scale=-1.0),
        "delta.decay_bias": Stored("ssm_dt.bias", numbers),
        "delta.norm": "ssm_norm",
        "delta.output_proj": Stored("ssm_out", cols=heads),
    }


def _tiled(delta: DeltaNet, width: int) -> Rows:
    return from_tiled_heads(delta.key_heads, delta.value_heads // delta.key_heads, width)


def _attention(decoder: Decoder) -> Modules:
    return {**query_and_gate(decoder, "attn_q"), "post_attention_layernorm": "post_attention_norm"}
