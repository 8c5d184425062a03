import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from kernels import _native
from quant.conversion import synth as module
from quant.conversion.synth import SHAPES, synth
from quant.errors import QuantError
from quant.packed.packed_file import PackedFile
from quant.sources.model_config import complete_config, expected_tensors

TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "SHAPES", {"tiny": TINY})
    return "tiny"


@pytest.mark.parametrize(
    ("shape", "weights"),
    [("llama2-7b", 6_738_149_376), ("tinyllama-1.1b", 1_099_956_224), ("smollm2-135m", 134_479_872)],
)
def test_shapes_have_the_published_number_of_weights(shape: str, weights: int) -> None:
    config, _ = complete_config({"model_type": "llama", **SHAPES[shape]}, shape)
    matrices = [t.shape for t in expected_tensors(config).values() if t.role != "vector"]
    assert sum(rows * cols for rows, cols in matrices) == weights


@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "nf4", "int8", "bf16", "fp32"])
def test_weights_are_centred_and_of_plausible_size(tiny: str, tmp_path: Path, qtype: str) -> None:
    report = synth(tiny, tmp_path / "out", qtype=qtype, progress=False)
    file = PackedFile(tmp_path / "out/model.safetensors")
    assert report.weights == sum(info.rows * info.cols for info in file.matrices.values())
    for name, info in file.matrices.items():
        values = file.dequantize(name)
        size = 1 / np.sqrt(info.cols)
        assert values.std() == pytest.approx(size, rel=0.1)
        assert abs(values.mean()) < 0.2 * size


def test_the_engine_runs_it(tiny: str, tmp_path: Path) -> None:
    synth(tiny, tmp_path / "out", progress=False)
    model = _native.Model(
        str(tmp_path / "out"), threads=1, kv_pages=4, max_sequences=1, max_step_tokens=16, max_context_tokens=64
    )
    model.page_table[0] = np.arange(2)
    one = np.array([3], np.int32)
    zero = np.zeros(1, np.int32)
    logits = model.logits(one, zero, zero, np.ones(1, np.int32), zero)
    assert np.isfinite(logits).all()
    assert 0.05 < logits.std() < 20


def test_the_seed_decides_every_byte(tiny: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synth(tiny, tmp_path / name, seed=seed, progress=False)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(a["lm_head.weight"], c["lm_head.weight"])


def test_its_tokenizer_is_whole(tiny: str, tmp_path: Path) -> None:
    synth(tiny, tmp_path / "out", progress=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    text = "Héllo 👋\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([299]) == "<filler_40>"
    assert "chat_template" in json.loads((tmp_path / "out/tokenizer_config.json").read_text())


def test_unknown_shape(tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="shape 'gpt5' is not one of llama2-7b"):
        synth("gpt5", tmp_path / "out")
