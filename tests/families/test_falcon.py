"""Falcon: one, few and all key-value heads; one norm, two and sequential ones; rotary embedding and ALiBi."""

from pathlib import Path
from typing import Any

import pytest

from tests.families import parity

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
NEW: dict[str, Any] = {"new_decoder_architecture": True, "num_kv_heads": 2}
CASES: dict[str, dict[str, Any]] = {
    "7b": {},
    "40b": {**NEW, "tie_word_embeddings": False},
    "11b": {**NEW, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 96},
    "sequential": {"parallel_attn": False, "bias": True},
    # transformers' eager attention adds ALiBi twice. Four heads and 150 positions are exact in its bfloat16.
    "rw": {"alibi": True, "bias": True, "parallel_attn": False, "multi_query": False, "attention": "sdpa"},
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    parity.check(tmp_path, parity.random_model("Falcon", tmp_path, **SIZES, **CASES[case]))
