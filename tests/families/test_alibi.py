"""BLOOM and MPT: ALiBi of heads that are a power of two and of others, norms with and without biases."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.families import parity

pytestmark = pytest.mark.parity

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("Bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4}),
    "bloom, six heads": ("Bloom", {"hidden_size": 96, "n_layer": 2, "n_head": 6, "tie_word_embeddings": False}),
    "mpt": ("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512}),
    "mpt, six heads": (
        "Mpt", {"d_model": 96, "n_heads": 6, "n_layers": 2, "max_seq_len": 512, "attn_config": {"softmax_scale": 0.2}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    parity.check(tmp_path, parity.random_model(kind, tmp_path, **options))


def test_bloom_without_a_prefix(tmp_path: Path) -> None:
    model = parity.random_model("Bloom", tmp_path / "saved", **CASES["bloom"][1])
    stored = load_file(tmp_path / "saved/model.safetensors")
    tensors = {name.removeprefix("transformer."): each for name, each in stored.items()}
    parity.write_folder(tmp_path / "published", model.config.to_dict(), tensors)
    parity.check(tmp_path / "published", model)
