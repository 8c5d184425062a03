"""Gemma: 1 + weight in norms, a scaled embedding, four norms, windows, soft caps and a rope for each kind of layer."""

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
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
WINDOWED: dict[str, Any] = {**SIZES, "sliding_window": 20, "query_pre_attn_scalar": 48}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", SIZES),
    "gemma, another activation": ("Gemma", {**SIZES, "hidden_act": "silu"}),
    "gemma 2": ("Gemma2", {**WINDOWED, **CAPS, "attention_bias": True}),
    "gemma 2, no caps": ("Gemma2", {**WINDOWED, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma 3": ("Gemma3", {**WINDOWED, "num_hidden_layers": 7, "rope_parameters": ROPES}),
    "gemma 3, untied": ("Gemma3", {**WINDOWED, "tie_word_embeddings": False, "final_logit_softcapping": 4.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    configuration = "Gemma3Text" if kind == "Gemma3" else kind
    model = parity.random_model(kind, tmp_path, configuration=configuration, **options)
    decoder = parity.check(tmp_path, model)
    assert len(decoder.kinds) == (1 if kind == "Gemma" or case.endswith("untied") else 2)


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_pictures_are_left_out(prefix: str, tmp_path: Path) -> None:
    model = parity.random_model("Gemma3", tmp_path / "text", configuration="Gemma3Text", **WINDOWED)
    stored = load_file(tmp_path / "text/model.safetensors")
    published = prefix == "language_model."
    tensors = {prefix + (name if published else name.removeprefix("model.")): each for name, each in stored.items()}
    tensors["vision_tower.patch.weight"] = stored["model.norm.weight"]
    text = json.loads((tmp_path / "text/config.json").read_text())
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "dtype": "float32"}
    parity.write_folder(tmp_path / "both", config, tensors)
    parity.check(tmp_path / "both", model)
