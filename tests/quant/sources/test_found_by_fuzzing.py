"""What the structured fuzzing once found: each must be an error of ours that names the file."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from quant.conversion.convert import convert
from quant.errors import SourceError, UnsupportedModelError
from quant.packed.packed_file import PackedFile
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf_folder(tmp_path / "in", random_tensors(CONFIG), shards=2)


def change_json(path: Path, key: str, value: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {key: value}))


@pytest.mark.parametrize("value", [[], ["llama"], {}])
def test_a_model_type_that_is_no_text(folder: Path, tmp_path: Path, value: Any) -> None:
    change_json(folder / "config.json", "model_type", value)
    with pytest.raises(UnsupportedModelError, match=r"config.json: model type"):
        convert(folder, tmp_path / "out", progress=False)


@pytest.mark.parametrize("value", [0.5, "x", {"a": 1}])
def test_end_tokens_that_are_none(folder: Path, tmp_path: Path, value: Any) -> None:
    change_json(folder / "config.json", "eos_token_id", value)
    with pytest.raises(SourceError, match="eos_token_id"):
        convert(folder, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_shard_name_with_a_null_byte(folder: Path, tmp_path: Path) -> None:
    change_json(folder / "model.safetensors.index.json", "weight_map", {"lm_head.weight": "model\x00.safetensors"})
    with pytest.raises(SourceError, match="not a plain file name"):
        convert(folder, tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    "change",
    [
        {"type": {}},
        {"type": "int5"},
        {"rows": None},
        {"rows": 0},
        {"cols": 2.5},
        {"group": 0},
        {"group": 48},
        {"cols": -128},
    ],
)
def test_packed_matrices_that_are_none(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    convert(folder, tmp_path / "out", qtype="int8", group_size=32, progress=False)
    path = tmp_path / "out/model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    matrices = json.loads(header["__metadata__"]["matrices"])
    matrices["lm_head.weight"] |= change
    header["__metadata__"]["matrices"] = json.dumps(matrices)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    with pytest.raises(SourceError, match=r"model.safetensors: its 'matrices' metadata is damaged"):
        PackedFile(path)
