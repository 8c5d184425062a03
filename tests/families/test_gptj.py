"""GPT-J: rotary embedding of neighbours in a part of the head, one norm a layer, a head with a bias."""

from pathlib import Path
from typing import Any

import pytest

from tests.families import parity

pytestmark = pytest.mark.parity

CASES: dict[str, dict[str, Any]] = {
    "part of the head": {"rotary_dim": 8},
    "whole head": {"rotary_dim": 16, "n_inner": 96, "activation_function": "gelu"},
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 512}
    parity.check(tmp_path, parity.random_model("GPTJ", tmp_path, **sizes, **CASES[case]))
