"""A checkpoint in fp16, kept in fp16: transformers' logits of the same numbers, as near as with fp32 weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion.convert import convert
from quant.packed.packed_file import PackedFile
from tests.families import parity
from tests.families.test_llama_likes import SIZES
from tests.families.test_opt import SIZES as OPT
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(("kind", "sizes"), [("Llama", SIZES), ("OPT", OPT)])
def test_logits(kind: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    parity.random_model(kind, tmp_path / "fp32", **sizes).half().save_pretrained(tmp_path / "fp16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "fp16", dtype=torch.float32)
    theirs = parity.reference_logits(model, parity.prompt())
    stored = parity.stored_tensors(tmp_path / "fp16")
    assert {each.dtype for each in stored.values()} == {np.dtype(np.float16)}
    byte_tokenizer().save(str(tmp_path / "fp16/tokenizer.json"))
    report = convert(tmp_path / "fp16", tmp_path / "packed", qtype="fp16", progress=False)
    assert report.notes == ()
    packed = PackedFile(tmp_path / "packed/model.safetensors")
    assert {info.type for info in packed.matrices.values()} == {"fp16"}
    parity.check_engine(tmp_path / "packed", theirs)
