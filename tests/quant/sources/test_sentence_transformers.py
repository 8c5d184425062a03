"""What a sentence-transformers folder says beside its configuration, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.families.description import Dense, Encoder
from quant.packed.packed_file import PackedFile
from quant.sources.open_source import open_source
from tests.quant.encoder_checkpoints import DENSE_ROWS, ENCODER, FILES, write_encoder_folder


def test_a_whole_folder(tmp_path: Path) -> None:
    folder = write_encoder_folder(tmp_path / "model")
    out = tmp_path / "packed"
    report = convert(folder, out, progress=False)
    assert (report.qtype, report.group_size) == ("int8", 32)
    packed = PackedFile(out / "model.safetensors")
    dense = Dense(DENSE_ROWS, 64, bias=False, activation="tanh")
    assert packed.decoder.encoder == Encoder("first", normalized=True, dense=(dense,))
    assert packed.vector("encoder.dense.0.weight").shape == (DENSE_ROWS * 64,)
    types = open_source(folder).tensors["model.embed_types.weight"].read(0, 128)
    np.testing.assert_array_equal(packed.vector("model.embed_types.weight"), types)
    assert json.loads((out / "config.json").read_text())[ENCODER] == {
        "task": "embed", "dimensions": DENSE_ROWS, "normalized": True, "max_tokens": 48, "prompts": {"query": "q: "},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("modules.json", {}, "is not a list"),
        ("modules.json", [{"path": "", "type": "a.Transformer"}, {"path": "1", "type": "a.WeightedLayerPooling"}],
         "'WeightedLayerPooling' at place 1 is not supported"),
        ("modules.json", [{"path": "../x", "type": "a.Transformer"}], "no plain folder|not a plain folder"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling 'max' is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": "cls", "include_prompt": False}, "include_prompt"),
        ("2_Dense/config.json", {**FILES["2_Dense/config.json"], "activation_function": "x.ELU"}, "'ELU'"),
        ("2_Dense/config.json", {**FILES["2_Dense/config.json"], "out_features": 8}, r"shape|\[8"),
        ("config_sentence_transformers.json", {"prompts": {"query": 1}}, "not an object of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "web"}, "'web' is none of the prompts"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "max_seq_length"),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, content: Any, reason: str, tmp_path: Path) -> None:
    folder = write_encoder_folder(tmp_path / "model", {**FILES, name: content})
    with pytest.raises(QuantError, match=reason):
        convert(folder, tmp_path / "packed", progress=False)
    assert not (tmp_path / "packed").exists()
