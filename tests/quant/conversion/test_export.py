"""Exported folders hold the packed weights exactly, appear whole, and replace only their like."""

from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file

from quant.conversion.convert import convert
from quant.conversion.export import export
from quant.errors import QuantError
from quant.packed.packed_file import PackedFile
from tests.kernels.tiny_model import write_model
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_hf_folder(folder / "hf", random_tensors({**CONFIG, "vocab_size": 1090}), {**CONFIG, "vocab_size": 1090})
    convert(folder / "hf", folder / "packed", qtype="asym_int4", group_size=64, method="rtn", progress=False)
    return folder / "packed"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_weights_are_those_of_the_packed_file(packed: Path, tmp_path: Path, dtype: str) -> None:
    report = export(packed, tmp_path / "out", dtype=dtype, progress=False)
    stored = load_file(tmp_path / "out/model.safetensors")
    file = PackedFile(packed / "model.safetensors")
    assert set(stored) == {*file.matrices, *file.vectors}
    assert report.tensors == len(stored)
    kind = {"fp32": np.float32, "bf16": bfloat16}[dtype]
    for name, values in stored.items():
        expected = file.dequantize(name) if name in file.matrices else file.vector(name)
        assert np.array_equal(values, expected.astype(kind)), name
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (packed / "tokenizer.json").read_bytes()


def test_an_export_converts_back_to_the_same_values(packed: Path, tmp_path: Path) -> None:
    export(packed, tmp_path / "out", progress=False)
    convert(tmp_path / "out", tmp_path / "again", qtype="fp32", progress=False)
    file, again = (PackedFile(folder / "model.safetensors") for folder in (packed, tmp_path / "again"))
    for name in file.matrices:
        assert np.array_equal(file.dequantize(name), again.dequantize(name)), name


def test_refusals(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="not a converted model"):
        export(tmp_path, tmp_path / "out", progress=False)
    with pytest.raises(QuantError, match="'fp16' is not one of"):
        export(packed, tmp_path / "out", dtype="fp16", progress=False)
    export(packed, tmp_path / "out", progress=False)
    with pytest.raises(QuantError, match="exists already"):
        export(packed, tmp_path / "out", progress=False)
    export(packed, tmp_path / "out", force=True, progress=False)
    with pytest.raises(QuantError, match="not replaced"):
        export(packed, packed, force=True, progress=False)


def test_a_family_whose_tensors_have_another_form_is_refused(tmp_path: Path) -> None:
    sparse = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    write_model(tmp_path / "m", config := {**CONFIG, "model_type": "qwen3_moe", **sparse}, random_tensors(config))
    with pytest.raises(QuantError, match="Qwen3MoeForCausalLM stores its tensors in another form"):
        export(tmp_path / "m", tmp_path / "out", progress=False)
