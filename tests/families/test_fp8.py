"""Folders with weights in FP8, as DeepSeek-V3, Qwen3 and Ministral 3 are published: what transformers makes of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from quant.sources.open_source import open_source
from tests.families import parity
from tests.families.test_deepseek import V3, with_biases
from tests.families.test_llama_likes import SIZES, YARN
from tests.families.test_qwen3_next import EXPERTS
from tests.families.test_qwen3_next import SIZES as QWEN

pytestmark = pytest.mark.parity

KEPT = ("embed_tokens.weight", "lm_head.weight", "gate.weight", "conv1d.weight", "in_proj_a.weight", "in_proj_b.weight")
"""Matrices that the authors leave in bf16."""
LARGEST = 448.0
"""Of E4M3."""


def blocks_of(weight: NDArray[np.float32], block: tuple[int, int] | None) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Codes, and the scales that they are multiplied by."""
    if block is None:
        scales = np.array(np.abs(weight).max() / LARGEST, np.float32)
        return (weight / scales).astype(float8_e4m3fn), scales
    codes = np.empty(weight.shape, float8_e4m3fn)
    scales = np.empty([-(-size // of_block) for size, of_block in zip(weight.shape, block, strict=True)], np.float32)
    for row, col in np.ndindex(scales.shape):
        part = np.s_[row * block[0] : (row + 1) * block[0], col * block[1] : (col + 1) * block[1]]
        scales[row, col] = np.abs(weight[part]).max() / LARGEST
        codes[part] = (weight[part] / scales[row, col]).astype(float8_e4m3fn)
    return codes, scales


def in_fp8(stored: Mapping[str, NDArray[np.float32]], block: tuple[int, int] | None) -> dict[str, NDArray[Any]]:
    """The tensors as a checkpoint's authors store them; each matrix of a stack has scales of its own."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in stored.items():
        if weight.ndim == 1 or name.endswith(KEPT):
            tensors[name] = weight
            continue
        made = [blocks_of(each, block) for each in weight.reshape(-1, *weight.shape[-2:])]
        codes, scales = (np.stack(each) if weight.ndim == 3 else each[0] for each in zip(*made, strict=True))
        tensors[name], tensors[f"{name}_scale_inv"] = codes, scales
        if block is None:
            tensors[name.removesuffix("weight") + "activation_scale"] = np.array(0.5, np.float32)
    return tensors


def store_in_fp8(folder: Path, block: tuple[int, int] | None) -> None:
    path = folder / "model.safetensors"
    save_file(in_fp8(load_file(path), block), path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "static" if block is None else "dynamic",
        "weight_block_size": block,
        "modules_to_not_convert": ["lm_head", "re:.*gate$"],
    }
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))


def as_transformers_reads_it(folder: Path) -> Any:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM
    return model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, int] | None]] = {
    "qwen 3": ("Qwen3", {**SIZES, "head_dim": 32, "hidden_size": 128}, (32, 32)),
    "ministral 3": ("Ministral3", {**SIZES, "head_dim": 32, "rope_parameters": YARN}, None),
    "deepseek-v3": ("DeepseekV3", {**V3, "q_lora_rank": 64, "qk_rope_head_dim": 32}, (32, 32)),
    "qwen3.5-moe": ("Qwen3_5Moe", {**QWEN, **EXPERTS}, (32, 32)),
}
"""Whole blocks: transformers reads no others. `tests/quant/sources/test_fp8_weights.py` has the rest."""


@pytest.mark.parametrize("model", MODELS)
def test_logits(model: str, tmp_path: Path) -> None:
    (kind, options, block), folder = MODELS[model], tmp_path / "model"
    configuration = f"{kind}Text" if kind.startswith("Qwen3_5") else None
    model_in_floats = parity.random_model(kind, folder, configuration=configuration, **options)
    with_biases(model_in_floats).save_pretrained(folder)
    store_in_fp8(folder, block)
    assert any(tensor.stored == "fp8" for tensor in open_source(folder).tensors.values())
    parity.check_converted(folder, parity.reference_logits(as_transformers_reads_it(folder), parity.prompt()))
