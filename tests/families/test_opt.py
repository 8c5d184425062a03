"""OPT: learned positions with two rows of padding before them, norms before each part or of the sums, projections."""

from pathlib import Path
from typing import Any

import pytest

from tests.families import parity

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "ffn_dim": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
AFTER: dict[str, Any] = {"do_layer_norm_before": False, "word_embed_proj_dim": 32}
"""As in OPT-350M."""
CASES: dict[str, dict[str, Any]] = {
    "norms before": {},
    "norms after, a narrow embedding": AFTER,
    "norms after": {"do_layer_norm_before": False},
    "a narrow embedding, its head apart": {"word_embed_proj_dim": 32, "tie_word_embeddings": False},
    "no final norm": {"_remove_final_layer_norm": True},
    "no biases, GELU": {"enable_bias": False, "activation_function": "gelu"},
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    decoder = parity.check(tmp_path, parity.random_model("OPT", tmp_path, **{**SIZES, **CASES[case]}))
    assert decoder.learned_positions


def test_a_checkpoint_without_a_prefix(tmp_path: Path) -> None:
    model = parity.random_model("OPT", tmp_path / "saved", **{**SIZES, **AFTER})
    stored = parity.stored_tensors(tmp_path / "saved")
    tensors = {name.removeprefix("model."): each for name, each in stored.items()}
    parity.write_folder(tmp_path / "published", model.config.to_dict(), tensors)
    parity.check(tmp_path / "published", model)
