"""DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash: latent attention, groups of experts, YaRN's temperatures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quant.conversion.convert import convert
from quant.packed.packed_file import PackedFile
from tests.families import parity
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "q_lora_rank": 40,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 32,
    "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 1.0,
}  # fmt: skip
GROUPS = {"n_group": 4, "topk_group": 2}
V2 = {**SIZES, "first_k_dense_replace": 1}
V3 = {**SIZES, "first_k_dense_replace": 1, **GROUPS, "num_mtp_layers": 0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "v2": ("DeepseekV2", {**V2, "topk_method": "greedy", "routed_scaling_factor": 1.5}),
    "v2, no latent of queries": ("DeepseekV2", {**V2, "q_lora_rank": None, "rope_parameters": YARN}),
    "v2, groups": ("DeepseekV2", {**V2, **GROUPS, "topk_method": "group_limited_greedy", "first_k_dense_replace": 0}),
    "v2, biases": ("DeepseekV2", {**V2, "attention_bias": True, "tie_word_embeddings": True}),
    "v3": ("DeepseekV3", V3),
    "v3, scaled": ("DeepseekV3", {**V3, "rope_parameters": YARN, "rms_norm_eps": 1e-2}),
    "v3, one temperature": ("DeepseekV3", {**V3, "rope_parameters": {**YARN, "mscale": 1.0}}),
    "v3, pairs apart": ("DeepseekV3", {**V3, "rope_interleave": False, "norm_topk_prob": False}),
    "v3, dense": ("DeepseekV3", {**V3, "first_k_dense_replace": 3, "attention_bias": True, "q_lora_rank": None}),
    "glm": ("Glm4MoeLite", {**SIZES, "n_shared_experts": 1, "rms_norm_eps": 1e-2}),
    "glm, groups": (
        "Glm4MoeLite",
        {**SIZES, **GROUPS, "mlp_layer_types": ["sparse", "dense", "sparse"], "rope_interleave": False},
    ),
}


def with_biases(model: Any) -> Any:
    """Corrections that change which experts are chosen: they are buffers, which stay 0 in random models."""
    import torch

    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn_like(buffer) * 0.3)
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    model = with_biases(parity.random_model(kind, tmp_path, **options))
    model.save_pretrained(tmp_path)
    parity.check(tmp_path, model)


def test_predicting_layers_are_left_out_and_experts_may_be_fused(tmp_path: Path) -> None:
    import safetensors.torch

    model = with_biases(parity.random_model("Glm4MoeLite", tmp_path / "m", **SIZES))
    folder = tmp_path / "m"
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    stored = load_file(folder / "model.safetensors")
    assert "model.layers.1.mlp.experts.gate_up_proj" in stored
    extra = {f"model.layers.3.{name}": np.zeros(3, np.float32) for name in ("eh_proj.weight", "enorm.weight")}
    save_file({**stored, **extra}, folder / "model.safetensors")
    parity.check(folder, model)


def int4_model(case: str, folder: Path) -> Any:
    kind, sizes = CASES[case]
    model = with_biases(parity.random_model(kind, folder, **{**sizes, "qk_nope_head_dim": 32, "q_lora_rank": 64}))
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def distance(packed: Path, theirs: Any) -> float:
    """Relative, with the service's activations and keys."""
    ours = Sequences(packed, context=256, compute_type="int8", kv_type="int16").logits({0: parity.prompt()})
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("case", ["v2", "v3, scaled", "glm"])
def test_int4_is_near(case: str, tmp_path: Path) -> None:
    """Codes of 4 bits are off by up to a 15th of a group's range each; those of 8 bits by a 17th of that."""
    theirs = parity.reference_logits(int4_model(case, tmp_path / "m"), parity.prompt())
    found = {}
    for qtype in ("sym_int4", "int8"):
        out = tmp_path / qtype
        convert(tmp_path / "m", out, method="rtn", qtype=qtype, group_size=32, progress=False)
        found[qtype] = distance(out, theirs)
    assert 0 < found["int8"] < found["sym_int4"] / 4
    assert found["sym_int4"] < 0.5


def test_gptq_chooses_the_codes_of_every_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quant.conversion.calibrated.LEAST_TOKENS", 2048)
    monkeypatch.setattr("quant.conversion.calibrated.TOKENS_PER_INPUT", 1)
    theirs = parity.reference_logits(int4_model("v3, scaled", tmp_path / "m"), parity.prompt())
    for method in ("rtn", "gptq"):
        convert(tmp_path / "m", tmp_path / method, method=method, qtype="sym_int4", group_size=32, progress=False)
    rounded, chosen = (PackedFile(tmp_path / method / "model.safetensors") for method in ("rtn", "gptq"))
    for part in ("q_a", "q_b", "kv_a", "key_up", "value_up", "o"):
        name = f"model.layers.1.self_attn.{part}_proj.weight"
        assert not np.array_equal(rounded.codes(name).codes, chosen.codes(name).codes), name
    assert 0 < distance(tmp_path / "gptq", theirs) < 0.5
