"""What a GGUF of gpt-oss has beside others: keys and tensors, as llama.cpp reads them. Its experts are MXFP4.

Does not know values.
"""

from collections.abc import Mapping
from typing import Any, Final

ARCHITECTURE: Final = "gpt-oss"
MXFP4_GROUP, MXFP4_BYTES = 32, 17  # ggml's block_mxfp4: a power of two and 16 bytes of codes
MXFP4_RMS: Final = 2.93
"""Root mean square of E2M1's sixteen values."""

Sizes = dict[str, tuple[int, ...]]


def is_gpt_oss(shape: Mapping[str, Any]) -> bool:
    """Whether a shape is gpt-oss'."""
    return bool(shape["model_type"] == "gpt_oss")


def add_metadata(writer: Any, shape: Mapping[str, Any]) -> None:
    """The keys that only these models have. writer: a gguf.GGUFWriter."""
    from gguf import RopeScalingType

    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_sliding_window(shape["sliding_window"])
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)


def layer_sizes(shape: Mapping[str, Any]) -> Sizes:
    """A layer's tensors, by names without "blk.N."."""
    hidden, inner, count = shape["hidden_size"], shape["intermediate_size"], shape["num_local_experts"]
    queries, keys = (shape[f"num_{name}_heads"] * shape["head_dim"] for name in ("attention", "key_value"))
    matrices: Sizes = {
        "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
        "attn_output": (hidden, queries), "ffn_gate_inp": (count, hidden), "ffn_gate_exps": (count, inner, hidden),
        "ffn_up_exps": (count, inner, hidden), "ffn_down_exps": (count, hidden, inner),
    }  # fmt: skip
    return {
        "attn_norm.weight": (hidden,),
        "post_attention_norm.weight": (hidden,),
        "attn_sinks.weight": (shape["num_attention_heads"],),
        **{f"{name}.weight": size for name, size in matrices.items()},
        **{f"{name}.bias": size[:-1] for name, size in matrices.items()},
    }
