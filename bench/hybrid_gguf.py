"""What a GGUF of a Gated DeltaNet model with experts has beside others: keys and tensors, as llama.cpp reads them.

Of the architecture qwen35moe. Does not know values.
"""

from collections.abc import Mapping
from typing import Any, Final

ARCHITECTURE: Final = "qwen35moe"
FLOATS: Final = ("ssm_conv1d", "ssm_alpha", "ssm_beta")
"""Parts of names of matrices that stay fp32."""
_SECTIONS: Final = [11, 11, 10, 0]
"""How rotary numbers are shared among text, height and width; texts have equal positions in all."""

Sizes = dict[str, tuple[int, ...]]


def is_hybrid(shape: Mapping[str, Any]) -> bool:
    """Whether a shape has layers of Gated DeltaNet."""
    return "linear_num_value_heads" in shape


def add_metadata(writer: Any, shape: Mapping[str, Any]) -> None:
    """The keys that only these models have. writer: a gguf.GGUFWriter."""
    writer.add_rope_dimension_count(int(shape["head_dim"] * shape["partial_rotary_factor"]))
    writer.add_rope_dimension_sections(_SECTIONS)
    writer.add_expert_shared_feed_forward_length(shape["shared_expert_intermediate_size"])
    writer.add_full_attention_interval(shape["full_attention_interval"])
    writer.add_ssm_conv_kernel(shape["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(shape["linear_key_head_dim"])
    writer.add_ssm_group_count(shape["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(shape["linear_num_value_heads"])
    writer.add_ssm_inner_size(shape["linear_num_value_heads"] * shape["linear_value_head_dim"])


def layer_sizes(shape: Mapping[str, Any], layer: int) -> Sizes:
    """A layer's tensors but for its experts, by names without "blk.N."."""
    hidden, shared = shape["hidden_size"], shape["shared_expert_intermediate_size"]
    sizes: Sizes = {
        "attn_norm.weight": (hidden,), "post_attention_norm.weight": (hidden,), "ffn_gate_inp_shexp.weight": (hidden,),
        "ffn_gate_shexp.weight": (shared, hidden), "ffn_up_shexp.weight": (shared, hidden),
        "ffn_down_shexp.weight": (hidden, shared),
    }  # fmt: skip
    if (layer + 1) % shape["full_attention_interval"] == 0:
        head_dim = shape["head_dim"]
        queries, keys = shape["num_attention_heads"] * head_dim, shape["num_key_value_heads"] * head_dim
        return sizes | {
            "attn_q.weight": (2 * queries, hidden), "attn_k.weight": (keys, hidden), "attn_v.weight": (keys, hidden),
            "attn_output.weight": (hidden, queries), "attn_q_norm.weight": (head_dim,),
            "attn_k_norm.weight": (head_dim,),
        }  # fmt: skip
    heads, value_dim = shape["linear_num_value_heads"], shape["linear_value_head_dim"]
    values, keys = heads * value_dim, shape["linear_num_key_heads"] * shape["linear_key_head_dim"]
    channels = 2 * keys + values
    return sizes | {
        "attn_qkv.weight": (channels, hidden), "attn_gate.weight": (values, hidden),
        "ssm_conv1d.weight": (channels, shape["linear_conv_kernel_dim"]), "ssm_alpha.weight": (heads, hidden),
        "ssm_beta.weight": (heads, hidden), "ssm_a": (heads,), "ssm_dt.bias": (heads,),
        "ssm_norm.weight": (value_dim,), "ssm_out.weight": (hidden, values),
    }  # fmt: skip
