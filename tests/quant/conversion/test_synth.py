import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from kernels import _native
from quant.conversion import synth as module
from quant.conversion.shapes import SHAPES
from quant.conversion.synth import synth
from quant.errors import QuantError
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.packed.packed_file import PackedFile

TINY = {
    "model_type": "llama",
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


SPARSE = {
    **TINY, "model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "decoder_sparse_step": 2,
}  # fmt: skip


@pytest.fixture(params=["dense", "experts"])
def tiny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "SHAPES", {"tiny": TINY if request.param == "dense" else SPARSE})
    return "tiny"


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-1.7b", 1_711_376_384),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-next-80b-a3b", 79_674_391_296),
        ("qwen3.5-9b", 8_953_803_264),
        ("qwen3.6-27b", 26_895_998_464),
        ("qwen3.6-35b-a3b", 34_660_610_688),
        ("lfm2-1.2b", 1_170_340_608),
        ("lfm2-8b-a1b", 8_339_930_560),
        ("olmoe-1b-7b", 6_919_161_856),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-v2-lite", 15_706_484_224),
        ("glm-4.7-flash", 29_943_393_920),
        ("gpt-oss-20b", 20_914_757_184),
        ("gemma-4-e2b", 4_628_569_379),
        ("gemma-4-e4b", 7_463_013_418),
        ("gemma-4-12b", 11_907_350_320),
        ("gemma-4-26b-a4b", 25_233_141_790),
        ("gemma-4-31b", 30_697_345_340),
    ],
)
def test_shapes_have_the_published_number_of_parameters(shape: str, parameters: int) -> None:
    tensors = engine_tensors(describe(SHAPES[shape], shape)).values()
    assert sum(math.prod(tensor.shape) for tensor in tensors) == parameters


def test_every_shape_is_counted() -> None:
    counted = test_shapes_have_the_published_number_of_parameters.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {shape for shape, _ in counted} == set(SHAPES)


@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "nf4", "int8", "fp16", "bf16", "fp32"])
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


def test_fewer_layers_than_the_shape_has(tiny: str, tmp_path: Path) -> None:
    synth(tiny, tmp_path / "out", layers=1, progress=False)
    assert PackedFile(tmp_path / "out/model.safetensors").decoder.layers == (0,)
    assert json.loads((tmp_path / "out/config.json").read_text())["num_hidden_layers"] == 1


def test_its_tokenizer_is_whole(tiny: str, tmp_path: Path) -> None:
    synth(tiny, tmp_path / "out", progress=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    text = "Héllo 👋\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([299]) == "<filler_40>"
    assert "chat_template" in json.loads((tmp_path / "out/tokenizer_config.json").read_text())


def test_unknown_shape(tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="shape 'gpt5' is not one of smollm2-135m"):
        synth("gpt5", tmp_path / "out")
