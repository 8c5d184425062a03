"""Families that differ from Llama in a little: Granite, OLMo 2 and 3, SmolLM3 and Ministral 3."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.families import parity

pytestmark = pytest.mark.parity

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 32,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
}  # fmt: skip
LONG = {
    "rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64,
    "attention_factor": 1.2, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
NO_ROPE: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 20, "no_rope_layer_interval": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": ("Granite", MULTIPLIERS),
    "granite with biases": ("Granite", {**MULTIPLIERS, "attention_bias": True, "mlp_bias": True}),
    "olmo 2": ("Olmo2", {}),
    "olmo 3": ("Olmo3", {"sliding_window": 20, "rope_parameters": {"full_attention": LONG, "sliding_attention": None}}),
    "olmo 3, listed": ("Olmo3", {"sliding_window": 20, "layer_types": ["full_attention", *["sliding_attention"] * 4]}),
    "smollm 3": ("SmolLM3", {}),
    "smollm 3, windows": ("SmolLM3", {**NO_ROPE, "attention_bias": True, "mlp_bias": True}),
    "smollm 3, listed": ("SmolLM3", {"no_rope_layers": [0, 1, 1, 0, 1], "tie_word_embeddings": False}),
    "ministral 3": ("Ministral3", {"head_dim": 32, "rope_parameters": YARN}),
    "ministral 3, window": ("Ministral3", {"head_dim": 32, "rope_parameters": YARN, "sliding_window": 20}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    parity.check(tmp_path, parity.random_model(kind, tmp_path, **{**SIZES, **options}))


@pytest.mark.parametrize("kind", ["Ministral3", "Mistral"])
def test_pictures_are_left_out(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = (
        {"head_dim": 32, "rope_parameters": YARN} if kind == "Ministral3" else {"sliding_window": None}
    )
    model = parity.random_model(kind, tmp_path / "text", **{**SIZES, **options})
    stored = load_file(tmp_path / "text/model.safetensors")
    tensors = {f"language_model.{name}": each for name, each in stored.items()}
    tensors["vision_tower.patch.weight"] = stored["model.norm.weight"]
    text = json.loads((tmp_path / "text/config.json").read_text())
    parity.write_folder(tmp_path / "both", {"model_type": "mistral3", "text_config": text}, tensors)
    parity.check(tmp_path / "both", model)
