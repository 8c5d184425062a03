"""Int4 weights and int16 keys: a token's logits have the same bits whatever the chunks, the company and the threads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion.convert import convert
from tests.families import parity, test_alibi, test_falcon, test_gemma, test_gemma4, test_gpt_oss, test_qwen3_next
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

HYBRID = {"configuration": "Qwen3_5MoeText", **test_qwen3_next.SIZES, **test_qwen3_next.EXPERTS}
GEMMA3: dict[str, Any] = {"configuration": "Gemma3Text", **test_gemma.CASES["gemma 3"][1]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "windows and soft caps": ("Gemma2", test_gemma.CASES["gemma 2"][1]),
    "windows of five layers in six": ("Gemma3", GEMMA3),
    "experts and sinks": ("GptOss", test_gpt_oss.OPTIONS),
    "heads of two shapes, experts beside an MLP": (
        "Gemma4",
        {"configuration": "Gemma4Text", **test_gemma4.CASES["experts"]},
    ),
    "ALiBi": test_alibi.CASES["bloom"],
    "one key-value head": ("Falcon", test_falcon.SIZES),
    "Gated DeltaNet": ("Qwen3_5Moe", HYBRID),
}


@pytest.mark.parametrize("case", CASES)
def test_bits(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    parity.random_model(kind, tmp_path / "folder", **options)
    byte_tokenizer().save(str(tmp_path / "folder/tokenizer.json"))
    packed = tmp_path / "packed"
    convert(tmp_path / "folder", packed, method="rtn", qtype="sym_int4", group_size=32, progress=False)

    def sequences(count: int, threads: int = 1) -> Sequences:
        return Sequences(packed, sequences=count, context=256, threads=threads, compute_type="int8", kv_type="int16")

    ids = parity.prompt()
    whole = sequences(1).logits({0: ids})
    assert np.isfinite(whole).all()
    assert whole.std() > 0.1
    alone = sequences(1)
    parts = [alone.logits({0: ids[at : at + 7]}) for at in range(0, len(ids), 7)]
    np.testing.assert_array_equal(np.concatenate(parts), whole, err_msg="chunks of 7")
    together, other = sequences(2, threads=2), parity.prompt(90, 1)
    first = together.logits({1: other[:50], 0: ids[:61]})[50:]
    rest = together.logits({1: other[50:], 0: ids[61:]})[40:]
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole, err_msg="beside another, with two threads")
