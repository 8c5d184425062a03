"""A checkpoint of transformers, converted, gives transformers' logits: names, rows, biases, norms, RoPE, ties."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.conversion.convert import convert
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 96}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "qwen3-moe, some layers dense": (
        "Qwen3Moe", {**EXPERTS, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen2-moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 96}),
    "qwen2-moe without biases": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 64, "qkv_bias": False}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    "olmoe, biases": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 8, "attention_bias": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "is_fused"),
    [(family, False) for family in FAMILIES]
    + [(family, True) for family in ("qwen3-moe, some layers dense", "qwen2-moe", "olmoe", "mixtral")],
)
def test_logits(family: str, is_fused: bool, tmp_path: Path) -> None:
    """is_fused: experts are saved as they are in memory, in tensors of three dimensions."""
    import safetensors.torch
    import torch
    import transformers

    name, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    reference = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # the library's own start is too small to tell models apart
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (1.0 if parameter.ndim == 1 else 0.0))
    reference.save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    assert (tmp_path / "hf/model.safetensors.index.json").exists()
    if is_fused:
        for part in (tmp_path / "hf").glob("model*"):
            part.unlink()
        safetensors.torch.save_file(reference.state_dict(), tmp_path / "hf/model.safetensors")
    byte_tokenizer().save(str(tmp_path / "hf/tokenizer.json"))
    convert(tmp_path / "hf", tmp_path / "out", qtype="fp32", progress=False)

    ids = np.random.default_rng(0).integers(0, 320, 150).astype(np.int32)
    model = _native.Model(
        str(tmp_path / "out"),
        threads=1,
        compute_type="fp32",
        kv_type="fp32",
        kv_pages=8,
        max_sequences=1,
        max_step_tokens=256,
        max_context_tokens=256,
    )
    model.page_table[0] = np.arange(8)
    zero = np.zeros(1, np.int32)
    ours = model.logits(ids, np.arange(150, dtype=np.int32), zero, np.array([150], np.int32), zero)
    with torch.no_grad():
        theirs = reference(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
    assert theirs.std() > 0.1
    # fp32 both: a few hundred roundings on the way, relative to the size of the logits.
    assert np.abs(ours - theirs).max() < 1000 * np.finfo(np.float32).eps * np.abs(theirs).max()
