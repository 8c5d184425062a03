"""Descriptions of published configurations: what their authors' papers and cards say of them."""

import math
from typing import Any

import pytest

from quant.families.description import Decoder, DeltaNet, Experts, Latent, Mlp
from quant.families.names import engine_tensors
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
GEMMA4_26B: dict[str, Any] = {
    "model_type": "gemma4", "dtype": "bfloat16", "vision_config": {}, "audio_config": None,
    "text_config": {
        "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112,
        "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
        "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True, "enable_moe_block": True,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "sliding_window": 1024,
        "max_position_embeddings": 262144, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "use_bidirectional_attention": "vision",
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
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
GLM_4_7_FLASH: dict[str, Any] = {
    "model_type": "glm4_moe_lite", "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
    "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
    "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8,
    "norm_topk_prob": True, "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0, "q_lora_rank": 768, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5, "rope_theta": 1000000, "rope_scaling": None, "attention_bias": False,
}  # fmt: skip
DEEPSEEK_V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "routed_scaling_factor": 1.0,
    "norm_topk_prob": False, "topk_method": "greedy", "scoring_func": "softmax", "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "auto_map": {"AutoModel": "modeling_deepseek.DeepseekV2Model"},
    "rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.707,
    },
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    **GLM_4_7_FLASH, "model_type": "deepseek_v3", "scoring_func": "sigmoid", "n_routed_experts": 256, "n_group": 8,
    "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 61,
    "rope_scaling": {**DEEPSEEK_V2_LITE["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0},
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
QWEN3_6_35B: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "vision_config": {},
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text", "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262144,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "layer_types": ([*["linear_attention"] * 3, "full_attention"]) * 10, "attn_output_gate": True,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "mlp_only_layers": [], "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
            "mrope_interleaved": True, "mrope_section": [11, 11, 10],
        },
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False,
    },
}  # fmt: skip
QWEN3_NEXT_80B: dict[str, Any] = {
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "max_position_embeddings": 262144, "full_attention_interval": 4, "partial_rotary_factor": 0.25,
    "rope_theta": 10000000, "rope_scaling": None, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "linear_num_value_heads": 32, "linear_num_key_heads": 16,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip


def _described(config: dict[str, Any]) -> Decoder:
    return family_of(config, "config.json").describe(config, "config.json")


def test_gemma_3_270m() -> None:
    decoder = _described(GEMMA3_270M)
    assert [decoder.attention(n).window for n in range(7)] == [512] * 5 + [0, 512]
    assert decoder.embedding_scale == 25.25  # sqrt(640) = 25.298 in bfloat16
    assert decoder.tied_head
    theta = [rope.frequencies[1] ** (-128.0) for rope in decoder.ropes]
    assert theta == pytest.approx([1e6, 1e4])
    assert [decoder.attention(n).rope for n in (4, 5)] == [1, 0]


def test_gemma_3_4b_is_its_language_model() -> None:
    decoder = _described(GEMMA3_4B)
    assert (decoder.vocab_size, decoder.heads, decoder.kv_heads, decoder.head_dim) == (262208, 8, 4, 256)
    assert decoder.ropes[0].frequencies[0] == 1 / 8
    assert decoder.ropes[1].frequencies[0] == 1
    assert sum(decoder.attention(n).window == 0 for n in range(34)) == 5


def test_gemma_4_26b() -> None:
    decoder = _described(GEMMA4_26B)
    assert decoder.embedding_scale == 53.0  # sqrt(2816) = 53.07 in bfloat16
    local, full = decoder.attention(4), decoder.attention(5)
    assert (decoder.query_dim_of(local), decoder.kv_dim_of(local), local.window) == (4096, 2048, 1024)
    assert (decoder.query_dim_of(full), decoder.kv_dim_of(full), full.window) == (8192, 1024, 0)
    assert (local.value_is_key, full.value_is_key) == (False, True)
    of_full, of_local = decoder.ropes
    assert (of_full.rotary_dim, of_local.rotary_dim) == (512, 256)
    assert [frequency > 0 for frequency in of_full.frequencies] == [True] * 64 + [False] * 192
    assert of_full.frequencies[1] == pytest.approx(1e6 ** (-1 / 256))
    experts, mlp = decoder.layer(0).experts, decoder.layer(0).mlp
    assert experts is not None
    assert mlp is not None
    assert (experts.count, experts.per_token, experts.inner, mlp.inner) == (128, 8, 704, 2112)
    assert decoder.logit_softcap == 30


def test_gpt_oss_20b() -> None:
    decoder = _described(GPT_OSS_20B)
    assert [decoder.attention(n).window for n in range(3)] == [128, 0, 128]
    experts = decoder.layer(0).experts
    assert experts is not None
    assert (experts.count, experts.per_token, experts.inner) == (32, 4, 2880)
    assert decoder.ropes[0].attention_factor == pytest.approx(0.1 * math.log(32) + 1)


def test_glm_4_7_flash() -> None:
    decoder = _described(GLM_4_7_FLASH)
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == (20, 1, 576)
    attention, rope = decoder.attention(5), decoder.ropes[0]
    assert attention.latent == Latent(512, 192, 64, 256, query_rank=768, norm_epsilon=1e-6)
    assert (attention.scale, rope.rotary_dim, rope.attention_factor) == (1 / 16, 64, 1.0)
    assert (decoder.layer(0).mlp, decoder.norm_epsilon) == (Mlp(10240), 1e-5)
    assert decoder.layer(1).experts == Experts(
        64, 4, 1536, scoring="sigmoid", correction_bias=True, renormalize=True, scale=1.8, shared_inner=1536
    )


def test_deepseek_v2_lite_has_no_latent_of_queries() -> None:
    decoder = _described(DEEPSEEK_V2_LITE)
    attention, experts = decoder.attention(1), decoder.layer(1).experts
    assert attention.latent == Latent(512, 128, 64, 128)
    # Its temperatures of rotation cancel out; that of scores is the square of 0.1 * 0.707 * ln 40 + 1.
    assert decoder.ropes[0].attention_factor == 1.0
    assert attention.scale == pytest.approx((0.1 * 0.707 * math.log(40) + 1) ** 2 / math.sqrt(192))
    assert experts == Experts(64, 6, 1408, shared_inner=2816)


def test_deepseek_v3_chooses_groups() -> None:
    decoder = _described(DEEPSEEK_V3)
    experts = decoder.layer(3).experts
    assert experts is not None
    assert decoder.layer(2).experts is None
    assert (experts.groups, experts.chosen_groups, experts.correction_bias) == (8, 4, True)
    unused = family_of(DEEPSEEK_V3, "config.json").unused(DEEPSEEK_V3, decoder)
    assert unused[-1] == "model.layers.61.*"


def test_phi_4_mini() -> None:
    decoder = _described(PHI4_MINI)
    rope = decoder.ropes[0]
    assert (rope.rotary_dim, rope.short_positions, decoder.attention(0).window) == (96, 4096, 0)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_dolly_3b() -> None:
    decoder = _described(DOLLY_3B)
    assert (decoder.head_dim, decoder.ropes[0].rotary_dim, decoder.layer(0).parallel) == (80, 20, True)


def test_falcon_7b_has_one_key_value_head() -> None:
    decoder = _described(FALCON_7B)
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == (71, 1, 64)
    assert not decoder.layer(0).mlp_norm


@pytest.mark.parametrize(("config", "layers"), [(QWEN3_6_35B, 40), (QWEN3_NEXT_80B, 48)])
def test_three_layers_of_gated_deltanet_and_one_of_attention(config: dict[str, Any], layers: int) -> None:
    decoder = _described(config)
    assert [decoder.layer(n).attention is None for n in range(layers)] == [True, True, True, False] * (layers // 4)
    assert decoder.layer(0).delta == DeltaNet(16, 32, 128, 128, 4)
    attention = decoder.attention(3)
    assert (attention.output_gate, attention.qk_norm, attention.scale) == (True, "head", 1 / 16)
    rope = decoder.ropes[0]
    assert (rope.rotary_dim, rope.frequencies[1] ** -32.0) == (64, pytest.approx(1e7))
    experts = decoder.layer(0).experts
    assert experts is not None
    assert (experts.inner, experts.shared_inner, experts.shared_gate, experts.renormalize) == (512, 512, True, True)


def test_qwen_3_6_35b_has_35_billion_weights() -> None:
    tensors = engine_tensors(_described(QWEN3_6_35B)).values()
    assert sum(math.prod(each.shape) for each in tensors) == pytest.approx(35e9, rel=0.02)


def test_baichuan_13b_has_alibi() -> None:
    decoder = _described(BAICHUAN_13B)
    slopes = decoder.attention(0).slopes
    assert slopes is not None
    assert len(slopes) == 40
    assert not decoder.ropes
