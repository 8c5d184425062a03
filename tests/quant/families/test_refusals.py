"""Options that the engine does not run are refused by name, never converted into a model that talks nonsense."""

from typing import Any

import pytest

from quant.errors import QuantError, SourceError, UnsupportedModelError
from quant.families.registry import family_of
from tests.quant.families.test_published import BAICHUAN_13B, DOLLY_3B, FALCON_7B, GEMMA3_270M, GPT_OSS_20B, PHI4_MINI

_SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 160, "max_position_embeddings": 512,
}  # fmt: skip
MPT: dict[str, Any] = {
    "model_type": "mpt", "vocab_size": 320, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
}  # fmt: skip
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm", "padded_vocab_size": 320, "hidden_size": 64, "num_layers": 2, "ffn_hidden_size": 160,
    "kv_channels": 16, "num_attention_heads": 4, "seq_length": 512, "multi_query_attention": True,
    "multi_query_group_num": 2,
}  # fmt: skip
QWEN: dict[str, Any] = {"model_type": "qwen", "seq_length": 512, "kv_channels": 16, **_SIZES}
GPTJ: dict[str, Any] = {"model_type": "gptj", "rotary_dim": 8, **_SIZES}
UNSUPPORTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "use_bidirectional_attention": (GEMMA3_270M, {"use_bidirectional_attention": True}),
    "attn_logit_softcapping": (GEMMA3_270M, {"attn_logit_softcapping": 50.0}),
    "hidden_activation": (GEMMA3_270M, {"hidden_activation": "quick_gelu"}),
    "layer_types": (GEMMA3_270M, {"layer_types": ["chunked_attention"] * 18}),
    "swiglu_alpha": (GPT_OSS_20B, {"swiglu_alpha": 1.0}),
    "swiglu_limit": (GPT_OSS_20B, {"swiglu_limit": 10.0}),
    "num_experts is": (GPT_OSS_20B, {"num_local_experts": 2**30}),
    "intermediate_size is 2888": (GPT_OSS_20B, {"intermediate_size": 2888}),
    "rope_type": (PHI4_MINI, {"rope_scaling": {"type": "other"}}),
    "hidden_act": (DOLLY_3B, {"hidden_act": "relu"}),
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
    "text_config.model_type": ({"model_type": "mistral3", "text_config": {"model_type": "qwen3"}}, {}),
}  # fmt: skip
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hidden_size is missing": (DOLLY_3B, {"hidden_size": None}),
    "layer_types": (GEMMA3_270M, {"layer_types": ["full_attention"]}),
    "short_factor": (PHI4_MINI, {"partial_rotary_factor": 0.5}),
    "rotary_dim": (GPTJ, {"rotary_dim": 18}),
    "intermediate_size": (QWEN, {"intermediate_size": 161}),
    "sliding_window": (GPT_OSS_20B, {"sliding_window": 0}),
    "heads do not divide": (BAICHUAN_13B, {"num_attention_heads": 39}),
    "num_attention_heads is": (FALCON_7B, {"num_attention_heads": 2**30, "hidden_size": 2**30}),
    "num_hidden_layers is": (GEMMA3_270M, {"num_hidden_layers": 2**30}),
    "head_dim is": (GEMMA3_270M, {"head_dim": 2**30}),
    "num_experts_per_tok is": (GPT_OSS_20B, {"num_experts_per_tok": 33}),
    "text_config is not an object": ({"model_type": "gemma3", "text_config": {"hidden_size": 64}}, {"text_config": 1}),
    "rope_scaling is not an object": (PHI4_MINI, {"rope_scaling": [1]}),
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
