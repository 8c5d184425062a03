"""A GGUF's metadata of experts as Hugging Face's keys, for architectures of the Llama family.

Source: llama.cpp's llama-model.cpp. Does not know which tensors hold them.
"""

from typing import Any, Final

from quant.errors import UnsupportedModelError
from quant.families.standard import MOST_LAYERS
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata

_RENORMALIZES: Final = {
    "llama": True, "qwen2moe": False, "qwen3moe": True, "olmoe": False, "qwen3next": True, "qwen35moe": True,
}  # fmt: skip
"""Whether llama.cpp renormalizes the factors of a token's experts, if the file does not say so."""
_SHARED: Final = ("qwen2moe", "qwen3next", "qwen35moe")
"""Architectures with an MLP that all tokens take."""
_SOFTMAX: Final = 1


def experts_config(gguf: GgufFile, arch: str, metadata: Metadata) -> dict[str, Any]:
    """The keys of a mixture of experts; empty for a dense model."""
    count = metadata.integer(f"{arch}.expert_count", 0)
    if not count:
        return {}
    if arch not in _RENORMALIZES:
        raise UnsupportedModelError(f"{gguf.path}: experts in models of the architecture {arch!r} are not supported")
    for key, supported in (("gating_func", _SOFTMAX), ("group_count", 1), ("group_used_count", 1)):
        value = metadata.integer(f"{arch}.expert_{key}", supported)
        if value not in (0, supported):
            raise UnsupportedModelError(f"{gguf.path}: metadata key '{arch}.expert_{key}' is {value}: not supported")
    if metadata.number(f"{arch}.expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise UnsupportedModelError(f"{gguf.path}: metadata key '{arch}.expert_weights_scale' is not supported")
    renormalizes = metadata.flag(f"{arch}.expert_weights_norm", _RENORMALIZES[arch])
    used = metadata.integer(f"{arch}.expert_used_count")
    if arch == "llama":
        if not renormalizes:
            raise UnsupportedModelError(f"{gguf.path}: metadata key '{arch}.expert_weights_norm' is false")
        mixtral = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
        return {**mixtral, "num_local_experts": count, "num_experts_per_tok": used}
    experts: dict[str, Any] = {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": renormalizes}
    if arch == "olmoe":
        return experts
    layers = min(metadata.integer(f"{arch}.block_count"), MOST_LAYERS)
    layers -= min(metadata.integer(f"{arch}.nextn_predict_layers", 0), layers)
    experts["mlp_only_layers"] = [n for n in range(layers) if f"blk.{n}.ffn_gate_inp.weight" not in gguf.tensors]
    experts["moe_intermediate_size"] = _inner(gguf, metadata, f"{arch}.expert_feed_forward_length", "exps")
    if arch in _SHARED:
        key = f"{arch}.expert_shared_feed_forward_length"
        experts["shared_expert_intermediate_size"] = _inner(gguf, metadata, key, "shexp")
    if arch == "qwen2moe":
        experts["qkv_bias"] = "blk.0.attn_q.bias" in gguf.tensors
    return experts


def _inner(gguf: GgufFile, metadata: Metadata, key: str, suffix: str) -> int:
    """The inner size of experts, which older files show only in the tensors."""
    shapes = [each.shape for name, each in gguf.tensors.items() if name.endswith(f".ffn_gate_{suffix}.weight")]
    return metadata.integer(key, shapes[0][-2] if shapes and len(shapes[0]) > 1 else None)
