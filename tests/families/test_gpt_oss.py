"""gpt-oss: sinks, windows, biases, a router whose choice is normalized, and experts in both of their storages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from quant.conversion.convert import convert
from quant.packed.packed_file import PackedFile
from tests.families import parity

pytestmark = pytest.mark.parity

OPTIONS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 20,
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SCALED = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}


@pytest.mark.parametrize("rope", [None, {**SCALED, "truncate": False}, {**SCALED, "truncate": True}])
def test_logits(rope: dict[str, Any] | None, tmp_path: Path) -> None:
    parity.check(tmp_path, parity.random_model("GptOss", tmp_path, rope_parameters=rope, **OPTIONS))


def test_all_experts_and_no_biases_of_attention(tmp_path: Path) -> None:
    options = {**OPTIONS, "attention_bias": False, "num_experts_per_tok": 5}
    parity.check(tmp_path, parity.random_model("GptOss", tmp_path, **options))


def test_mxfp4_keeps_its_codes(tmp_path: Path) -> None:
    """As published: codes and exponents; transformers computes with the values that they stand for."""
    import torch

    model = parity.random_model("GptOss", tmp_path / "floats", **{**OPTIONS, "num_hidden_layers": 2})
    stored = load_file(tmp_path / "floats/model.safetensors")
    generator = np.random.default_rng(3)
    for number in range(2):
        experts = model.model.layers[number].mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            full = f"model.layers.{number}.mlp.experts.{name}"
            count, cols, rows = stored.pop(full).shape
            codes = generator.integers(0, 16, (count, rows, cols // 32, 32), np.uint8)
            exponents = generator.integers(121, 124, (count, rows, cols // 32), np.uint8)
            stored[f"{full}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
            stored[f"{full}_scales"] = exponents
            values = E2M1[codes] * 2.0 ** (exponents[..., None].astype(np.float64) - 127)
            matrix = torch.from_numpy(values.reshape(count, rows, cols).astype(np.float32))
            getattr(experts, name).data.copy_(matrix.transpose(1, 2))
    config = json.loads((tmp_path / "floats/config.json").read_text())
    folder = tmp_path / "published"
    parity.write_folder(folder, {**config, "quantization_config": {"quant_method": "mxfp4"}}, stored)
    theirs = parity.reference_logits(model, parity.prompt())
    parity.check_converted(folder, theirs)

    convert(folder, tmp_path / "auto", method="rtn", progress=False)
    packed = PackedFile(tmp_path / "auto/model.safetensors")
    name = "model.layers.1.mlp.experts.gate_proj.weight"
    blocks = stored["model.layers.1.mlp.experts.gate_up_proj_blocks"][:, ::2]
    kept = packed.codes(name)
    assert kept.type == "lut4"
    np.testing.assert_array_equal(kept.codes[:, ::2], (blocks & 15).reshape(len(kept.codes), -1))
    np.testing.assert_array_equal(kept.codes[:, 1::2], (blocks >> 4).reshape(len(kept.codes), -1))
