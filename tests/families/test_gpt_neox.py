"""GPT-NeoX: heads' query, key and value side by side in one matrix, parallel and sequential layers, GELUs."""

from pathlib import Path
from typing import Any

import pytest

from tests.families import parity

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
CASES: dict[str, dict[str, Any]] = {
    "parallel": {},
    "half of the head": {"rotary_pct": 0.5, "rotary_emb_base": 5000},
    "sequential": {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
    "tied": {"tie_word_embeddings": True, "hidden_act": "gelu_fast"},
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    parity.check(tmp_path, parity.random_model("GPTNeoX", tmp_path, **SIZES, **CASES[case]))
