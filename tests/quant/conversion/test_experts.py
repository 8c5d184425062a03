"""Experts are quantized like other matrices, stacked; routers are not; and what calibration does not do is said."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.packed.packed_file import PackedFile
from tests.quant.checkpoints import CONFIG, write_checkpoint

QWEN3: Mapping[str, Any] = {
    **CONFIG, "model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "decoder_sparse_step": 2, "architectures": ["Qwen3MoeForCausalLM"],
}  # fmt: skip
STACK = "model.layers.1.mlp.experts.gate_proj.weight"
ROUTER = "model.layers.1.mlp.router.weight"


@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "lut4", "nf4", "int8", "fp16", "bf16", "fp32"])
def test_every_type(qtype: str, tmp_path: Path) -> None:
    tensors = write_checkpoint(tmp_path / "hf", QWEN3)
    report = convert(tmp_path / "hf", tmp_path / "out", qtype=qtype, method="rtn", progress=False)
    packed = PackedFile(tmp_path / "out" / "model.safetensors")
    info = packed.matrices[STACK]
    assert (info.count, info.rows, info.cols) == (5, 5 * 64, 128)
    assert json.loads(packed.metadata["matrices"])[STACK]["count"] == 5
    original, found = tensors[STACK], packed.dequantize(STACK)
    bits = {"int8": 8, "fp16": 12, "bf16": 9, "fp32": 24}.get(qtype, 4)
    assert np.linalg.norm(found - original) <= 3 * 2.0**-bits * np.linalg.norm(original)
    assert np.array_equal(packed.dequantize(ROUTER), tensors[ROUTER])
    assert packed.matrices[ROUTER].type == "fp32"
    assert report.weights == sum(values.size for values in tensors.values() if values.ndim == 2)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_router_of_16_bits_stays_so(dtype: str, tmp_path: Path) -> None:
    tensors = write_checkpoint(tmp_path / "hf", QWEN3, dtype=dtype)
    convert(tmp_path / "hf", tmp_path / "out", method="rtn", progress=False)
    packed = PackedFile(tmp_path / "out" / "model.safetensors")
    assert packed.matrices[ROUTER].type == dtype
    assert np.array_equal(packed.dequantize(ROUTER), tensors[ROUTER])


@pytest.mark.parametrize("changes", [{}, {"model_type": "mistral", "sliding_window": 64}])
def test_the_default_is_quick_for_any_layers(changes: Mapping[str, Any], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", {**CONFIG, **changes} if changes else QWEN3)
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
    assert convert(tmp_path / "hf", tmp_path / "out", calibration_text=text, progress=False).method == "quick"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tuned"}, "method 'tuned' knows only layers like Llama's, which this model's are not: use gptq"),
        ({"bits": 4.5}, "a budget of bits knows only layers like Llama's, which this model's are not: choose a qtype"),
        ({"extent": "tensor", "qtype": "sym_int4"}, "one scale per tensor is not made for models with experts"),
    ],
)
def test_what_is_not_done_is_refused(options: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", QWEN3)
    with pytest.raises(QuantError, match=message):
        convert(tmp_path / "hf", tmp_path / "out", progress=False, **options)
    assert not (tmp_path / "out").exists()
