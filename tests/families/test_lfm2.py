"""LFM2, dense and with experts: gated convolutions, the adjusted inner size, experts by sigmoid with a correction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families import parity

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", {}),
    "lfm2, biases, four taps, inner size as it is": (
        "Lfm2", {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False}
    ),
    "lfm2, an inner size that is adjusted": (
        "Lfm2", {"intermediate_size": 200, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.3}
    ),
    "lfm2, only convolutions": ("Lfm2", {"layer_types": ["conv"] * 4}),
    "lfm2, attention by number": ("Lfm2", {"layer_types": None, "full_attn_idxs": [0, 3]}),
    "lfm2-moe": ("Lfm2Moe", EXPERTS),
    "lfm2-moe, without correction": (
        "Lfm2Moe",
        {**EXPERTS, "use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5, "conv_bias": True},
    ),
    "lfm2-moe, untied, all layers sparse": (
        "Lfm2Moe", {**EXPERTS, "num_dense_layers": 0, "tie_word_embeddings": False}
    ),
}  # fmt: skip


def random_model(model: str, folder: Path) -> Any:
    kind, options = MODELS[model]
    options = {key: value for key, value in {**SIZES, **options}.items() if value is not None}
    reference = parity.random_model(kind, folder, **options)
    corrections = [each for name, each in reference.named_buffers() if name.endswith("expert_bias")]
    for number, correction in enumerate(corrections):
        correction.copy_(correction.new_tensor(np.random.default_rng(number).standard_normal(len(correction)) * 0.2))
    if corrections:
        reference.save_pretrained(folder)
    return reference


@pytest.mark.parametrize("model", MODELS)
def test_logits(model: str, tmp_path: Path) -> None:
    parity.check(tmp_path / "model", random_model(model, tmp_path / "model"))


def test_experts_fused_in_the_file(tmp_path: Path) -> None:
    """As they are in memory."""
    reference = random_model("lfm2-moe", tmp_path / "saved")
    tensors = dict(reference.state_dict())
    assert any(name.endswith("experts.gate_up_proj") for name in tensors)
    tensors.pop("lm_head.weight")
    parity.write_folder(tmp_path / "fused", reference.config.to_dict(), tensors)
    parity.check_description(tmp_path / "fused", parity.reference_logits(reference, parity.prompt()))
