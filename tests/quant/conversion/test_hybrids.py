"""Gated DeltaNet models are converted to every type, and calibrated; what is not done for them is said."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.families.names import engine_tensors
from quant.packed.packed_file import PackedFile
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import CONFIG, write_checkpoint

HYBRID: Mapping[str, Any] = {
    **CONFIG, "num_hidden_layers": 3, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 32, "full_attention_interval": 2,
}  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "dense": {**HYBRID, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]},
    "with experts": {
        **HYBRID, "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [1],
    },
}  # fmt: skip


@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "lut4", "nf4", "int8", "fp16", "bf16", "fp32"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_type(kind: str, qtype: str, tmp_path: Path) -> None:
    tensors = write_checkpoint(tmp_path / "hf", CONFIGS[kind])
    convert(tmp_path / "hf", tmp_path / "out", qtype=qtype, method="rtn", progress=False)
    packed = PackedFile(tmp_path / "out" / "model.safetensors")
    bits = {"int8": 8, "fp16": 12, "bf16": 9, "fp32": 24}.get(qtype, 4)
    for name, tensor in engine_tensors(packed.decoder).items():
        if tensor.role == "vector":
            continue
        off = np.linalg.norm(packed.dequantize(name) - tensors[name]) / np.linalg.norm(tensors[name])
        assert off <= (0 if tensor.role == "router" else 3 * 2.0**-bits), name
    assert packed.matrices["model.layers.0.delta.beta_proj.weight"].type == "fp32"


@pytest.mark.parametrize("method", ["quick", "gptq"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_codes_of_every_matrix_are_chosen(kind: str, method: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", CONFIGS[kind])
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
    report = convert(tmp_path / "hf", tmp_path / "out", method=method, calibration_text=text, progress=False)
    nearest = convert(tmp_path / "hf", tmp_path / "rtn", qtype=report.qtype, method="rtn", progress=False)
    assert (nearest.qtype, nearest.size_bytes) == (report.qtype, report.size_bytes)
    chosen, rounded = (PackedFile(folder / "model.safetensors") for folder in (report.folder, nearest.folder))
    for name, tensor in engine_tensors(chosen.decoder).items():
        if tensor.role == "linear":
            assert not np.array_equal(chosen.codes(name).codes, rounded.codes(name).codes), name
    logits = Sequences(report.folder, sequences=1, compute_type="int8", kv_type="int16").logits({0: list(range(40))})
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("options", [{"method": "tuned"}, {"method": "signround"}, {"bits": 4.5}])
def test_what_is_not_done_is_refused(options: Mapping[str, Any], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", CONFIGS["dense"])
    with pytest.raises(QuantError, match="knows only layers like Llama's, which this model's are not"):
        convert(tmp_path / "hf", tmp_path / "out", progress=False, **options)
    assert not (tmp_path / "out").exists()
