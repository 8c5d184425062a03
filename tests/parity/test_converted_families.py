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
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str, tmp_path: Path) -> None:
    import torch
    import transformers

    name, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    reference = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # the library's own start is too small to tell models apart
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (1.0 if parameter.ndim == 1 else 0.0))
    reference.save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    assert (tmp_path / "hf/model.safetensors.index.json").exists()
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
