"""Options that the engine does not run are refused by name, never converted into a model that talks nonsense."""

from typing import Any

import pytest

from quant.errors import QuantError, SourceError, UnsupportedModelError
from quant.families.registry import family_of
from tests.quant.families.test_published import (
    BAICHUAN_13B,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    DOLLY_3B,
    FALCON_7B,
    GEMMA3_270M,
    GEMMA4_26B,
    GLM_4_7_FLASH,
    GPT_OSS_20B,
    PHI4_MINI,
    QWEN3_6_35B,
    QWEN3_NEXT_80B,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 160, "max_position_embeddings": 512,
}  # fmt: skip
DEEPSEEK_V2: dict[str, Any] = {**DEEPSEEK_V2_LITE, "q_lora_rank": 1536}
MPT: dict[str, Any] = {
    "model_type": "mpt", "vocab_size": 320, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
}  # fmt: skip
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm", "padded_vocab_size": 320, "hidden_size": 64, "num_layers": 2, "ffn_hidden_size": 160,
    "kv_channels": 16, "num_attention_heads": 4, "seq_length": 512, "multi_query_attention": True,
    "multi_query_group_num": 2,
}  # fmt: skip
GEMMA4: dict[str, Any] = GEMMA4_26B["text_config"]
QWEN: dict[str, Any] = {"model_type": "qwen", "seq_length": 512, "kv_channels": 16, **_SIZES}
GPTJ: dict[str, Any] = {"model_type": "gptj", "rotary_dim": 8, **_SIZES}
QWEN3_6: dict[str, Any] = QWEN3_6_35B["text_config"]
UNSUPPORTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attn_logit_softcapping": (GEMMA3_270M, {"attn_logit_softcapping": 50.0}),
    "hidden_activation": (GEMMA3_270M, {"hidden_activation": "quick_gelu"}),
    "layer_types": (GEMMA3_270M, {"layer_types": ["chunked_attention"] * 18}),
    "use_bidirectional_attention 'all'": (GEMMA4, {"use_bidirectional_attention": "all"}),
    "hidden_size_per_layer_input is 2048": (GEMMA4, {"hidden_size_per_layer_input": 2048}),
    "vocab_size_per_layer_input": (
        GEMMA4, {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 1000}
    ),
    "per_layer_config.3.intermediate_size": (GEMMA4, {"per_layer_config": {"3": {"intermediate_size": 64}}}),
    "per_layer_config": (GEMMA4, {"per_layer_config": {"5": {"head_dim": 64}}}),
    "moe_intermediate_size is 720": (GEMMA4, {"moe_intermediate_size": 720}),
    "swiglu_alpha": (GPT_OSS_20B, {"swiglu_alpha": 1.0}),
    "swiglu_limit": (GPT_OSS_20B, {"swiglu_limit": 10.0}),
    "num_experts is": (GPT_OSS_20B, {"num_local_experts": 2**30}),
    "intermediate_size is 2888": (GPT_OSS_20B, {"intermediate_size": 2888}),
    "rope_type": (PHI4_MINI, {"rope_scaling": {"type": "other"}}),
    "hidden_act": (DOLLY_3B, {"hidden_act": "mish"}),
    "parallel_attn": (FALCON_7B, {"new_decoder_architecture": True, "parallel_attn": False}),
    "num_ln_in_parallel_attn": (FALCON_7B, {"num_ln_in_parallel_attn": 2}),
    "apply_residual_connection_post_layernorm": (
        {**_SIZES, "model_type": "bloom"}, {"apply_residual_connection_post_layernorm": True}
    ),
    "attn_config.clip_qkv": (MPT, {"attn_config": {"clip_qkv": 6.0}}),
    "attn_config.alibi": (MPT, {"attn_config": {"alibi": False}}),
    "attn_config.qk_ln": (MPT, {"attn_config": {"qk_ln": True}}),
    "attn_config.prefix_lm": (MPT, {"attn_config": {"prefix_lm": True}}),
    "no_bias": (MPT, {"no_bias": False}),
    "logit_scale": (MPT, {"logit_scale": "inv_sqrt_d_model"}),
    "multi_query_attention": (CHATGLM, {"multi_query_attention": False}),
    "rmsnorm": (CHATGLM, {"rmsnorm": False}),
    "quantization_bit": (CHATGLM, {"quantization_bit": 4}),
    "first ChatGLM": (CHATGLM, {"padded_vocab_size": None}),
    "scale_attn_weights": (QWEN, {"scale_attn_weights": False}),
    "attn_output_gate": (QWEN3_6, {"attn_output_gate": False}),
    "attention_bias": (QWEN3_6, {"attention_bias": True}),
    "hidden_act 'gelu'": (QWEN3_NEXT_80B, {"hidden_act": "gelu"}),
    "norm_topk_prob": (QWEN3_6, {"norm_topk_prob": False}),
    "mlp_only_layers": (QWEN3_6, {"mlp_only_layers": [1]}),
    "decoder_sparse_step": (QWEN3_6, {"decoder_sparse_step": 2}),
    "layer_types names 'sliding_attention'": (QWEN3_6, {"layer_types": ["sliding_attention"] * 40}),
    "gives no layer attention": (QWEN3_NEXT_80B, {"full_attention_interval": 49}),
    "use_sliding_window": (QWEN3_NEXT_80B, {"use_sliding_window": True}),
    "linear_conv_kernel_dim is 9": (QWEN3_NEXT_80B, {"linear_conv_kernel_dim": 9}),
    "linear_key_head_dim is 512": (QWEN3_6, {"linear_key_head_dim": 512}),
    "rope_parameters.rope_type 'mrope'": (QWEN3_6, {"rope_parameters": {"rope_type": "mrope"}}),
    "norm_topk_prob True": (DEEPSEEK_V2, {"norm_topk_prob": True}),
    "topk_method": (DEEPSEEK_V2, {"topk_method": "noaux_tc"}),
    "moe_layer_freq": (DEEPSEEK_V2, {"moe_layer_freq": 2}),
    "mlp_bias": (DEEPSEEK_V2, {"mlp_bias": True}),
    "scoring_func": (DEEPSEEK_V3, {"scoring_func": "softmax"}),
    "kv_lora_rank is 500": (DEEPSEEK_V3, {"kv_lora_rank": 500}),
    "v_head_dim is 100": (GLM_4_7_FLASH, {"v_head_dim": 100}),
    "moe_intermediate_size is 1500": (GLM_4_7_FLASH, {"moe_intermediate_size": 1500}),
    "n_routed_experts is": (GLM_4_7_FLASH, {"n_routed_experts": 2**20}),
    "mlp_layer_types": (GLM_4_7_FLASH, {"mlp_layer_types": ["linear"] * 47}),
    "text_config.model_type": ({"model_type": "mistral3", "text_config": {"model_type": "qwen3"}}, {}),
    "partial_rotary_factor is 0.5": (DEEPSEEK_V3, {"partial_rotary_factor": 0.5}),
    "rope_scaling.partial_rotary_factor is 0.5": (GPT_OSS_20B, {"rope_scaling": {"partial_rotary_factor": 0.5}}),
    "full_attention.partial_rotary_factor": (
        GEMMA4, {"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}},
    ),
    "full_attention.truncate": (
        GEMMA4, {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}},
    ),
    "hidden_act is the activation 'mish'": ({**_SIZES, "model_type": "gemma", "head_dim": 16}, {"hidden_act": "mish"}),
}  # fmt: skip
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hidden_size is missing": (DOLLY_3B, {"hidden_size": None}),
    "layer_types": (GEMMA3_270M, {"layer_types": ["full_attention"]}),
    "full_attention is missing in rope_parameters": (GEMMA4, {"rope_parameters": {"sliding_attention": {}}}),
    "num_kv_shared_layers leaves no layer": (GEMMA4, {"num_kv_shared_layers": 25}),
    "num_kv_shared_layers is more than": (GEMMA4, {"num_kv_shared_layers": 31}),
    "layer 5's 3 key-value heads": (GEMMA4, {"num_global_key_value_heads": 3}),
    "layer 5's 2 key-value heads of 2048": (GEMMA4, {"global_head_dim": 2048}),
    "num_experts_per_tok is 129": (GEMMA4, {"top_k_experts": 129}),
    "partial_rotary_factor": (
        GEMMA4,
        {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0}}},
    ),
    "short_factor": (PHI4_MINI, {"partial_rotary_factor": 0.5}),
    "rotary_dim": (GPTJ, {"rotary_dim": 18}),
    "intermediate_size": (QWEN, {"intermediate_size": 161}),
    "sliding_window": (GPT_OSS_20B, {"sliding_window": 0}),
    "heads do not divide": (BAICHUAN_13B, {"num_attention_heads": 39}),
    "num_attention_heads is": (FALCON_7B, {"num_attention_heads": 2**30, "hidden_size": 2**30}),
    "num_hidden_layers is": (GEMMA3_270M, {"num_hidden_layers": 2**30}),
    "head_dim is": (GEMMA3_270M, {"head_dim": 2**30}),
    "num_experts_per_tok is": (GPT_OSS_20B, {"num_experts_per_tok": 33}),
    "q_lora_rank is missing": (GLM_4_7_FLASH, {"q_lora_rank": None}),
    "qk_rope_head_dim is 63": (GLM_4_7_FLASH, {"qk_rope_head_dim": 63}),
    "qk_rope_head_dim is 1024": (GLM_4_7_FLASH, {"qk_rope_head_dim": 1024}),
    "qk_nope_head_dim is 2048": (GLM_4_7_FLASH, {"qk_nope_head_dim": 2048}),
    "n_group is 7": (DEEPSEEK_V3, {"n_group": 7}),
    "n_group is 256": (DEEPSEEK_V3, {"n_group": 256}),
    "topk_group is 9": (DEEPSEEK_V3, {"topk_group": 9}),
    "topk_group is 1": (DEEPSEEK_V3, {"n_group": 64, "topk_group": 1}),
    "mlp_layer_types is": (GLM_4_7_FLASH, {"mlp_layer_types": ["dense"]}),
    "text_config is not an object": ({"model_type": "gemma3", "text_config": {"hidden_size": 64}}, {"text_config": 1}),
    "rope_scaling is not an object": (PHI4_MINI, {"rope_scaling": [1]}),
    "linear_num_value_heads. and 12 key heads": (QWEN3_6, {"linear_num_key_heads": 12}),
    "layer_types is": (QWEN3_6, {"layer_types": ["linear_attention"]}),
    "full_attention_interval is 0": (QWEN3_NEXT_80B, {"full_attention_interval": 0}),
    "shared_expert_intermediate_size is missing": (QWEN3_NEXT_80B, {"shared_expert_intermediate_size": None}),
    "no_rope_layers": ({**_SIZES, "model_type": "smollm3"}, {"no_rope_layers": [1, 2]}),
}


def _describe(config: dict[str, Any], changes: dict[str, Any]) -> None:
    changed = {key: value for key, value in {**config, **changes}.items() if value is not None}
    family_of(changed, "config.json").describe(changed, "config.json")


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_option_is_refused(name: str) -> None:
    config, changes = UNSUPPORTED[name]
    if changes:
        _accepted(config)
    with pytest.raises(UnsupportedModelError, match=name):
        _describe(config, changes)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named(name: str) -> None:
    config, changes = WRONG[name]
    _accepted(config)
    with pytest.raises(SourceError, match=name):
        _describe(config, changes)


def _accepted(config: dict[str, Any]) -> None:
    """The unchanged one must pass: else the refusal would prove nothing."""
    try:
        _describe(config, {})
    except QuantError as error:
        pytest.fail(f"refused as it is: {error}")
