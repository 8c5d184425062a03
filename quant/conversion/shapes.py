"""Shapes of well-known models, as their published config.json has them, for `redoubt synth` and `redoubt plan`.

A shape has what decides about speed and memory; scaled RoPE, which does not, is left out.
Of experts it has how many there are and how many a token takes.
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
    "gpt-oss-20b": {
        **_shape(
            "gpt_oss", hidden=2880, inner=2880, layers=_GPT_OSS_LAYERS, heads=64, kv_heads=8, vocab=201088,
            context=131072, theta=150000.0, head_dim=64,
        ),
        "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
        "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * (_GPT_OSS_LAYERS // 2),
    },
}  # fmt: skip


def of_layers(shape: Mapping[str, Any], layers: int | None) -> Mapping[str, Any]:
    """The shape with only so many of its layers; None: all."""
    if layers is None:
        return shape
    fewer = {"layer_types": shape["layer_types"][:layers]} if "layer_types" in shape else {}
    return {**shape, "num_hidden_layers": layers, **fewer}
