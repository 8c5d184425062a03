"""GGUFs of LFM2: their metadata as Hugging Face's keys, and their names.

Sources: llama.cpp's convert_hf_to_gguf.py and llama-arch.cpp. Layers of convolution are those without key-value heads.
"""

from collections.abc import Callable
from typing import Any, Final

from quant.errors import UnsupportedModelError
from quant.families.description import Decoder
from quant.families.lfm2 import convolution
from quant.families.modules import Modules
from quant.families.standard import MOST_LAYERS
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata

_SIGMOID: Final = 2


def lfm2_config(arch: str, model_type: str, name: str) -> Callable[[Metadata, GgufFile], dict[str, Any]]:
    """Makes the function that reads one of these architectures' keys. name: transformers' class."""

    def config(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
        layers = min(metadata.integer(f"{arch}.block_count"), MOST_LAYERS)
        key = f"{arch}.attention.head_count_kv"
        kv_heads = metadata.integers(key, max(layers, 1))
        if len(set(kv_heads) - {0}) > 1:
            raise UnsupportedModelError(f"{gguf.path}: metadata key {key!r} has several numbers: not supported")
        return {
            "architectures": [name],
            "model_type": model_type,
            "layer_types": ["full_attention" if count else "conv" for count in kv_heads[:layers]],
            "conv_L_cache": metadata.integer(f"{arch}.shortconv.l_cache"),
            "conv_bias": any(each.endswith(".shortconv.conv.bias") for each in gguf.tensors),
            "norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            "block_auto_adjust_ff_dim": False,  # the file has the size that came of it
            **(_experts(metadata, gguf, arch) if metadata.integer(f"{arch}.expert_count", 0) else {}),
        }

    return config


def _experts(metadata: Metadata, gguf: GgufFile, arch: str) -> dict[str, Any]:
    if metadata.integer(f"{arch}.expert_gating_func", _SIGMOID) != _SIGMOID:
        raise UnsupportedModelError(f"{gguf.path}: metadata key '{arch}.expert_gating_func' is not sigmoid")
    return {
        "num_experts": metadata.integer(f"{arch}.expert_count"),
        "num_experts_per_tok": metadata.integer(f"{arch}.expert_used_count"),
        "moe_intermediate_size": metadata.integer(f"{arch}.expert_feed_forward_length"),
        "num_dense_layers": metadata.integer(f"{arch}.leading_dense_block_count", 0),
        "norm_topk_prob": metadata.flag(f"{arch}.expert_weights_norm", True),
        "routed_scaling_factor": metadata.number(f"{arch}.expert_weights_scale", 1.0) or 1.0,
        "use_expert_bias": any(each.endswith(".exp_probs_b.bias") for each in gguf.tensors),
    }


def lfm2_parts(decoder: Decoder) -> Modules:
    """Modules with unusual names: the final norm has the name that others give the embedding's."""
    return {
        "model.norm": "token_embd_norm",
        "conv.input_proj": "shortconv.in_proj",
        **convolution(decoder, "shortconv.conv"),
        "conv.output_proj": "shortconv.out_proj",
    }
