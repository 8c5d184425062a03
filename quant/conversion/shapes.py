"""Shapes of well-known models, as their published config.json has them, for `redoubt synth` and `redoubt plan`.

A shape has only what decides speed and memory, which scaled RoPE does not. It includes the number of experts and of
experts per token.
"""

from collections.abc import Mapping
from typing import Any, Final


def _shape(
    family: str,
    *,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    context: int,
    theta: float,
    tied: bool = False,
    head_dim: int | None = None,
) -> Mapping[str, Any]:
    return {
        "model_type": family, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim or hidden // heads,
        "vocab_size": vocab, "max_position_embeddings": context, "rope_theta": theta, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }  # fmt: skip


def _llama3(layers: int, hidden: int, inner: int, heads: int, *, tied: bool = False) -> Mapping[str, Any]:
    return _shape(
        "llama", hidden=hidden, inner=inner, layers=layers, heads=heads, kv_heads=8, vocab=128256, context=131072,
        theta=500000.0, tied=tied,
    )  # fmt: skip


def _qwen3(layers: int, hidden: int, inner: int, heads: int, *, tied: bool = False) -> Mapping[str, Any]:
    return _shape(
        "qwen3", hidden=hidden, inner=inner, layers=layers, heads=heads, kv_heads=8, vocab=151936, context=40960,
        theta=1e6, tied=tied, head_dim=128,
    )  # fmt: skip


def _hybrid(
    family: str, *, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, value_heads: int, vocab: int
) -> Mapping[str, Any]:
    """A model with Gated DeltaNet, and attention in every fourth layer."""
    return {
        **_shape(
            family, hidden=hidden, inner=inner, layers=layers, heads=heads, kv_heads=kv_heads, vocab=vocab,
            context=262144, theta=1e7, head_dim=256,
        ),
        "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip


def _full_at(layers: int, *full: int) -> list[str]:
    """Layer types with attention in the layers `full` and a convolution in the others."""
    return ["full_attention" if number in full else "conv" for number in range(layers)]


def _deepseek(
    family: str, *, hidden: int, inner: int, layers: int, heads: int, vocab: int, context: int, theta: float
) -> Mapping[str, Any]:
    return _shape(
        family, hidden=hidden, inner=inner, layers=layers, heads=heads, kv_heads=heads, vocab=vocab, context=context,
        theta=theta, head_dim=64,
    )  # fmt: skip


def _latent(*, query_rank: int | None, nope: int, value: int) -> Mapping[str, Any]:
    return {
        "q_lora_rank": query_rank, "kv_lora_rank": 512, "qk_nope_head_dim": nope, "qk_rope_head_dim": 64,
        "v_head_dim": value,
    }  # fmt: skip


def _gemma4(
    layers: int, hidden: int, inner: int, heads: int, kv_heads: int, full_kv_heads: int, **others: Any
) -> Mapping[str, Any]:
    """A Gemma 4 in which every sixth layer has full attention, with other heads than the rest."""
    return {
        **_shape(
            "gemma4_text", hidden=hidden, inner=inner, layers=layers, heads=heads, kv_heads=kv_heads, vocab=262144,
            context=262144, theta=1e6, tied=True, head_dim=256,
        ),
        "rms_norm_eps": 1e-6, "hidden_size_per_layer_input": 0, "global_head_dim": 512, "attention_k_eq_v": True,
        "num_global_key_value_heads": full_kv_heads, "sliding_window": 1024, "final_logit_softcapping": 30.0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * (layers // 6), "dtype": "bfloat16", **others,
    }  # fmt: skip


def _gemma4_small(
    layers: int, hidden: int, inner: int, kv_heads: int, sharing: int, interval: int
) -> Mapping[str, Any]:
    """A small Gemma 4, with layer inputs, and last layers that read earlier layers' keys."""
    types = (["sliding_attention"] * (interval - 1) + ["full_attention"]) * (layers // interval)
    return _gemma4(
        layers, hidden, inner, 8, kv_heads, kv_heads, attention_k_eq_v=False, max_position_embeddings=131072,
        sliding_window=512, hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144,
        num_kv_shared_layers=sharing, use_double_wide_mlp=interval == 5, layer_types=types,
    )  # fmt: skip


_GPT_OSS_LAYERS: Final = 24

SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "smollm2-135m": _shape(
        "llama", hidden=576, inner=1536, layers=30, heads=9, kv_heads=3, vocab=49152, context=8192, theta=100000.0,
        tied=True,
    ),
    "smollm2-1.7b": _shape(
        "llama", hidden=2048, inner=8192, layers=24, heads=32, kv_heads=32, vocab=49152, context=8192, theta=130000.0,
        tied=True,
    ),
    "tinyllama-1.1b": _shape(
        "llama", hidden=2048, inner=5632, layers=22, heads=32, kv_heads=4, vocab=32000, context=2048, theta=10000.0
    ),
    "llama2-7b": _shape(
        "llama", hidden=4096, inner=11008, layers=32, heads=32, kv_heads=32, vocab=32000, context=4096, theta=10000.0
    ),
    "llama2-13b": _shape(
        "llama", hidden=5120, inner=13824, layers=40, heads=40, kv_heads=40, vocab=32000, context=4096, theta=10000.0
    ),
    "llama3.2-1b": _llama3(16, 2048, 8192, 32, tied=True),
    "llama3.2-3b": _llama3(28, 3072, 8192, 24, tied=True),
    "llama3.1-8b": _llama3(32, 4096, 14336, 32),
    "llama3.1-70b": _llama3(80, 8192, 28672, 64),
    "mistral-7b": _shape(
        "mistral", hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, vocab=32768, context=32768, theta=1e6
    ),
    "qwen2.5-0.5b": _shape(
        "qwen2", hidden=896, inner=4864, layers=24, heads=14, kv_heads=2, vocab=151936, context=32768, theta=1e6,
        tied=True,
    ),
    "qwen2.5-7b": _shape(
        "qwen2", hidden=3584, inner=18944, layers=28, heads=28, kv_heads=4, vocab=152064, context=32768, theta=1e6
    ),
    "qwen2.5-14b": _shape(
        "qwen2", hidden=5120, inner=13824, layers=48, heads=40, kv_heads=8, vocab=152064, context=32768, theta=1e6
    ),
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 12288, 32),
    "qwen3-14b": _qwen3(40, 5120, 17408, 40),
    "qwen3-32b": _qwen3(64, 5120, 25600, 64),
    "qwen3-30b-a3b": {
        **_shape(
            "qwen3_moe", hidden=2048, inner=6144, layers=48, heads=32, kv_heads=4, vocab=151936, context=40960,
            theta=1e6, head_dim=128,
        ),
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
    },
    "qwen3-next-80b-a3b": {
        **_hybrid(
            "qwen3_next", hidden=2048, inner=5120, layers=48, heads=16, kv_heads=2, value_heads=32, vocab=151936
        ),
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
    },
    "qwen3.5-9b": _hybrid(
        "qwen3_5_text", hidden=4096, inner=12288, layers=32, heads=16, kv_heads=4, value_heads=32, vocab=248320
    ),
    "qwen3.6-27b": _hybrid(
        "qwen3_5_text", hidden=5120, inner=17408, layers=64, heads=24, kv_heads=4, value_heads=48, vocab=248320
    ),
    "qwen3.6-35b-a3b": {
        **_hybrid(
            "qwen3_5_moe_text", hidden=2048, inner=512, layers=40, heads=16, kv_heads=2, value_heads=32, vocab=248320
        ),
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "lfm2-1.2b": {
        **_shape(
            "lfm2", hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, vocab=65536, context=128000, theta=1e6,
            tied=True,
        ),
        "layer_types": _full_at(16, 2, 5, 8, 10, 12, 14), "block_auto_adjust_ff_dim": False, "norm_eps": 1e-5,
    },
    "lfm2-8b-a1b": {
        **_shape(
            "lfm2_moe", hidden=2048, inner=7168, layers=24, heads=32, kv_heads=8, vocab=65536, context=128000,
            theta=1e6, tied=True,
        ),
        "layer_types": _full_at(24, 2, 6, 10, 14, 18, 21), "num_dense_layers": 2, "num_experts": 32,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "norm_eps": 1e-5,
    },
    "olmoe-1b-7b": {
        **_shape(
            "olmoe", hidden=2048, inner=1024, layers=16, heads=16, kv_heads=16, vocab=50304, context=4096, theta=10000.0
        ),
        "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False,
    },
    "mixtral-8x7b": {
        **_shape(
            "mixtral", hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, vocab=32000, context=32768, theta=1e6
        ),
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "deepseek-v2-lite": {
        **_deepseek(
            "deepseek_v2", hidden=2048, inner=10944, layers=27, heads=16, vocab=102400, context=163840, theta=10000.0
        ),
        **_latent(query_rank=None, nope=128, value=128), "n_routed_experts": 64, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
    },
    "glm-4.7-flash": {
        **_deepseek(
            "glm4_moe_lite", hidden=2048, inner=10240, layers=47, heads=20, vocab=154880, context=202752, theta=1e6
        ),
        **_latent(query_rank=768, nope=192, value=256), "n_routed_experts": 64, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.8, "norm_topk_prob": True,
    },
    "gpt-oss-20b": {
        **_shape(
            "gpt_oss", hidden=2880, inner=2880, layers=_GPT_OSS_LAYERS, heads=64, kv_heads=8, vocab=201088,
            context=131072, theta=150000.0, head_dim=64,
        ),
        "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
        "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * (_GPT_OSS_LAYERS // 2),
    },
    "gemma-4-e2b": _gemma4_small(35, 1536, 6144, kv_heads=1, sharing=20, interval=5),
    "gemma-4-e4b": _gemma4_small(42, 2560, 10240, kv_heads=2, sharing=18, interval=6),
    "gemma-4-12b": {**_gemma4(48, 3840, 15360, 16, 8, 1), "model_type": "gemma4_unified_text"},
    "gemma-4-26b-a4b": _gemma4(
        30, 2816, 2112, 16, 8, 2,
        enable_moe_block=True, num_experts=128, top_k_experts=8, moe_intermediate_size=704,
    ),
    "gemma-4-31b": _gemma4(60, 5376, 21504, 32, 16, 4),
}  # fmt: skip


def _bert(hidden: int, layers: int, *, vocab: int = 30522, positions: int = 512, **others: Any) -> Mapping[str, Any]:
    return {
        "model_type": "bert", "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": max(hidden // 64, 12), "vocab_size": vocab, "max_position_embeddings": positions,
        "tie_word_embeddings": True, **others,
    }  # fmt: skip


_SCORES: Final[dict[str, Any]] = {"architectures": ["ForSequenceClassification"], "id2label": {"0": ""}}

ENCODER_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "all-minilm-l6-v2": _bert(384, 6),
    "bge-small-en-v1.5": _bert(384, 12),
    "bge-base-en-v1.5": _bert(768, 12),
    "multilingual-e5-small": _bert(384, 12, vocab=250037),
    "nomic-embed-text-v1.5": {**_bert(768, 12, vocab=30528, positions=2048), "model_type": "nomic_bert"},
    "qwen3-embedding-0.6b": {**_qwen3(28, 1024, 3072, 16, tied=True), "vocab_size": 151669},
    "ms-marco-minilm-l6": _bert(384, 6, **_SCORES),
    "bge-reranker-v2-m3": _bert(1024, 24, vocab=250002, positions=8194, **_SCORES, model_type="xlm-roberta"),
    "gte-reranker-modernbert": {
        **_bert(768, 22, vocab=50368, positions=8192, **_SCORES), "model_type": "modernbert", "intermediate_size": 1152,
    },
    "qwen3-reranker-0.6b": {**_qwen3(28, 1024, 3072, 16, tied=True), "vocab_size": 151669},
}  # fmt: skip
"""Encoders and rerankers, which are stored in int8."""


def of_layers(shape: Mapping[str, Any], layers: int | None) -> Mapping[str, Any]:
    """Truncates the shape to `layers` layers; None: all."""
    if layers is None:
        return shape
    fewer = {"layer_types": shape["layer_types"][:layers]} if "layer_types" in shape else {}
    if "num_kv_shared_layers" in shape:
        fewer["num_kv_shared_layers"] = max(0, layers - shape["num_hidden_layers"] + shape["num_kv_shared_layers"])
    return {**shape, "num_hidden_layers": layers, **fewer}
