"""Qwen3-Next and Qwen3.5, dense and with experts: Gated DeltaNet, output gates, and how each stores its tensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from quant.conversion.convert import convert
from quant.families.names import engine_tensors
from quant.packed.packed_file import PackedFile
from tests.families import decoder_reference, parity
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 1e5, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-next": ("Qwen3Next", EXPERTS),
    "qwen3-next, some layers dense": (
        "Qwen3Next",
        {
            **EXPERTS, "num_hidden_layers": 5, "layer_types": None, "decoder_sparse_step": 2, "mlp_only_layers": [3],
            "norm_topk_prob": False,
        },
    ),
    "qwen3-next, every second layer has attention": (
        "Qwen3Next", {**EXPERTS, "num_hidden_layers": 4, "layer_types": None, "full_attention_interval": 2}
    ),
    "qwen3.5": ("Qwen3_5", {}),
    "qwen3.5, tied, as many key heads as value heads": (
        "Qwen3_5", {"tie_word_embeddings": True, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 2},
    ),
    "qwen3.5, four value heads a key head, six taps": (
        "Qwen3_5",
        {
            "linear_num_key_heads": 1, "linear_conv_kernel_dim": 6, "linear_key_head_dim": 32,
            "linear_value_head_dim": 16, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.25},
        },
    ),
    "qwen3.5, YaRN": ("Qwen3_5", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}),
    "qwen3.5-moe": ("Qwen3_5Moe", EXPERTS),
    "qwen3.5-moe, the last layers without attention": (
        "Qwen3_5Moe", {**EXPERTS, "layer_types": ["full_attention", "linear_attention", "linear_attention"]},
    ),
}  # fmt: skip


def random_model(model: str, folder: Path) -> Any:
    kind, options = MODELS[model]
    configuration = f"{kind}Text" if kind != "Qwen3Next" else None
    options = {key: value for key, value in {**SIZES, **options}.items() if value is not None}
    return parity.random_model(kind, folder, configuration=configuration, **options)


@pytest.mark.parametrize("model", MODELS)
def test_logits(model: str, tmp_path: Path) -> None:
    parity.check(tmp_path, random_model(model, tmp_path))


@pytest.mark.parametrize("model", ["qwen3-next", "qwen3.5", "qwen3.5-moe"])
def test_as_published(model: str, tmp_path: Path) -> None:
    """Qwen3.5 with pictures and guesses of further tokens around it; its experts fused, as they are in memory."""
    reference = random_model(model, tmp_path / "text")
    text = json.loads((tmp_path / "text/config.json").read_text())
    tensors, config = dict(reference.state_dict()), text
    if model != "qwen3-next":
        config = {"model_type": text["model_type"].removesuffix("_text"), "text_config": text, "vision_config": {}}
        tensors = {name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()}
        tensors["model.visual.blocks.0.norm1.weight"] = np.ones(8, np.float32)
    tensors["mtp.fc.weight"] = np.ones((64, 128), np.float32)
    assert any(name.endswith("experts.gate_up_proj") for name in tensors) == (model != "qwen3.5")
    parity.write_folder(tmp_path / "published", config, tensors)
    parity.check_description(tmp_path / "published", parity.reference_logits(reference, parity.prompt()))


@pytest.mark.parametrize("model", ["qwen3-next", "qwen3.5, tied, as many key heads as value heads"])
def test_int4(model: str, tmp_path: Path) -> None:
    """With fp32 activations exactly what the codes stand for; int8 ones add 1 / 254 of a group's largest a matrix."""
    random_model(model, tmp_path / "folder")
    byte_tokenizer().save(str(tmp_path / "folder/tokenizer.json"))
    convert(tmp_path / "folder", tmp_path / "packed", method="rtn", group_size=32, progress=False)
    packed, ids = PackedFile(tmp_path / "packed/model.safetensors"), parity.prompt(100)
    vectors = load_file(tmp_path / "packed/model.safetensors")
    weights = {
        name: packed.dequantize(name) if name in packed.matrices else vectors[name]
        for name in engine_tensors(packed.decoder)
    }
    exact = {name: values.astype(np.float64) for name, values in weights.items()}
    wanted = decoder_reference.logits(packed.decoder, exact, ids)
    parity.close(Sequences(tmp_path / "packed", sequences=1).logits({0: ids}), wanted)
    found = Sequences(tmp_path / "packed", sequences=1, compute_type="int8", kv_type="int16").logits({0: ids})
    assert 0 < np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)
