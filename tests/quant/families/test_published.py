"""Descriptions of published configurations: what their authors' papers and cards say of them."""

import math
from typing import Any

import pytest

from quant.families.description import Decoder
from quant.families.registry import family_of

GEMMA3_270M: dict[str, Any] = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048,
    "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "max_position_embeddings": 32768, "sliding_window": 512, "query_pre_attn_scalar": 256, "rope_theta": 1e6,
    "rope_local_base_freq": 1e4, "rope_scaling": None, "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "torch_dtype": "bfloat16",
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA3_4B: dict[str, Any] = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0,
    "max_position_embeddings": 131072, "rope_theta": 150000, "rms_norm_eps": 1e-5, "attention_bias": True,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
PHI4_MINI: dict[str, Any] = {
    "model_type": "phi3", "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "partial_rotary_factor": 0.75,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "sliding_window": 262144,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    "tie_word_embeddings": True, "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
}  # fmt: skip
DOLLY_3B: dict[str, Any] = {
    "model_type": "gpt_neox", "vocab_size": 50280, "hidden_size": 2560, "intermediate_size": 10240,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048, "rotary_pct": 0.25,
    "rotary_emb_base": 10000, "use_parallel_residual": True, "layer_norm_eps": 1e-5, "hidden_act": "gelu",
}  # fmt: skip
FALCON_7B: dict[str, Any] = {
    "model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
    "num_attention_heads": 71, "num_kv_heads": 71, "multi_query": True, "parallel_attn": True, "alibi": False,
    "new_decoder_architecture": False, "bias": False, "layer_norm_epsilon": 1e-5, "auto_map": {},
}  # fmt: skip
BAICHUAN_13B: dict[str, Any] = {
    "model_type": "baichuan", "vocab_size": 64000, "hidden_size": 5120, "intermediate_size": 13696,
    "num_hidden_layers": 40, "num_attention_heads": 40, "model_max_length": 4096, "rms_norm_eps": 1e-6,
}  # fmt: skip


def _described(config: dict[str, Any]) -> Decoder:
    return family_of(config, "config.json").describe(config, "config.json")


def test_gemma_3_270m() -> None:
    decoder = _described(GEMMA3_270M)
    assert [decoder.layer(n).attention.window for n in range(7)] == [512] * 5 + [0, 512]
    assert decoder.embedding_scale == 25.25  # sqrt(640) = 25.298 in bfloat16
    assert decoder.tied_head
    theta = [rope.frequencies[1] ** (-128.0) for rope in decoder.ropes]
    assert theta == pytest.approx([1e6, 1e4])
    assert [decoder.layer(n).attention.rope for n in (4, 5)] == [1, 0]


def test_gemma_3_4b_is_its_language_model() -> None:
    decoder = _described(GEMMA3_4B)
    assert (decoder.vocab_size, decoder.heads, decoder.kv_heads, decoder.head_dim) == (262208, 8, 4, 256)
    assert decoder.ropes[0].frequencies[0] == 1 / 8
    assert decoder.ropes[1].frequencies[0] == 1
    assert sum(decoder.layer(n).attention.window == 0 for n in range(34)) == 5


def test_gpt_oss_20b() -> None:
    decoder = _described(GPT_OSS_20B)
    assert [decoder.layer(n).attention.window for n in range(3)] == [128, 0, 128]
    experts = decoder.layer(0).experts
    assert experts is not None
    assert (experts.count, experts.per_token, experts.inner) == (32, 4, 2880)
    assert decoder.ropes[0].attention_factor == pytest.approx(0.1 * math.log(32) + 1)


def test_phi_4_mini() -> None:
    decoder = _described(PHI4_MINI)
    rope = decoder.ropes[0]
    assert (rope.rotary_dim, rope.short_positions, decoder.layer(0).attention.window) == (96, 4096, 0)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_dolly_3b() -> None:
    decoder = _described(DOLLY_3B)
    assert (decoder.head_dim, decoder.ropes[0].rotary_dim, decoder.layer(0).parallel) == (80, 20, True)


def test_falcon_7b_has_one_key_value_head() -> None:
    decoder = _described(FALCON_7B)
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == (71, 1, 64)
    assert not decoder.layer(0).mlp_norm


def test_baichuan_13b_has_alibi() -> None:
    decoder = _described(BAICHUAN_13B)
    slopes = decoder.layer(0).attention.slopes
    assert slopes is not None
    assert len(slopes) == 40
    assert not decoder.ropes
