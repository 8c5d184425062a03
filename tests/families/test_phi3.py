"""Phi-3 and Phi-4-mini: fused matrices, a part of the head rotated, LongRoPE for short and long contexts, a window."""

from pathlib import Path
from typing import Any

import pytest

from tests.families import parity

pytestmark = pytest.mark.parity

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FACTORS = {"short_factor": [1.0 + i / 9 for i in range(6)], "long_factor": [1.0 + i for i in range(6)]}
LONGROPE = {"rope_type": "longrope", "partial_rotary_factor": 0.75, **FACTORS}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 30},
    "long": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    "short": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 256, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    parity.check(tmp_path, parity.random_model("Phi3", tmp_path, **{**SIZES, **CASES[case]}))
