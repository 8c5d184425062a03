import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quant.codes.matrix import QuantizedMatrix
from quant.errors import SourceError, UnsupportedModelError
from quant.families.names import engine_tensors
from quant.families.registry import describe, family_of
from quant.sources.open_source import open_source
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_come_back_exactly(tmp_path: Path, dtype: str, shards: int) -> None:
    tensors = random_tensors(CONFIG)
    source = open_source(write_hf_folder(tmp_path / "hf", tensors, dtype=dtype, shards=shards))
    assert set(source.tensors) == set(tensors)
    assert len(source.files) == 1 + shards
    for name, values in tensors.items():
        tensor = source.tensors[name]
        assert tensor.stored == dtype
        read = tensor.read(0, tensor.shape[0])
        assert not isinstance(read, QuantizedMatrix)
        assert np.array_equal(read, values), name
        part = tensor.read(1, 3)
        assert not isinstance(part, QuantizedMatrix)
        assert np.array_equal(part, values[1:3]), name


@pytest.mark.parametrize("model_type", ["llama", "gemma3"])
def test_a_head_that_is_not_the_embedding_is_kept_whatever_the_config_says(tmp_path: Path, model_type: str) -> None:
    """As transformers does, which warns. Gemma 3's, as published, is part of a module."""
    config = {**CONFIG, "model_type": model_type, "tie_word_embeddings": True}
    tensors = random_tensors({**config, "tie_word_embeddings": False})
    prefix = "language_model." if model_type == "gemma3" else ""
    stored = {f"{prefix}{name}": values for name, values in tensors.items()}
    if model_type == "gemma3":  # its names of the four norms
        described = describe(config, "x")
        wanted = family_of(config, "x").alternatives[1](config, replace(described, tied_head=False))
        stored = {each.pieces[0].name: tensors[name] for name, each in wanted.items()}
    source = open_source(write_hf_folder(tmp_path / "hf", stored, config))
    assert not source.decoder.tied_head
    assert source.config["tie_word_embeddings"] is False
    assert source.notes[0].startswith("The configuration ties the output head to the embedding, but")
    head = source.tensors["lm_head.weight"].read(0, 320)
    assert np.array_equal(np.asarray(head), tensors["lm_head.weight"])


def test_what_an_index_does_not_name_is_not_overlooked(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf", random_tensors(CONFIG), shards=2)
    path = folder / "model-00001-of-00002.safetensors"
    save_file({**load_file(path), "model.layers.0.self_attn.q_proj.bias": np.ones(128, np.float32)}, path)
    with pytest.raises(SourceError, match=r"has the tensor 'model.layers.0.self_attn.q_proj.bias', which"):
        open_source(folder)


def test_parts_that_are_left_out_are_said(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "ministral3"}
    tensors = {**random_tensors(config), "model.vision_tower.norm.weight": np.ones(4, np.float32)}
    source = open_source(write_hf_folder(tmp_path / "hf", tensors, config))
    assert source.notes == ("Left out, since answers to text do not need them: vision_tower.",)


def test_a_tied_head_is_dropped_and_old_buffers_too(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    folder = write_hf_folder(tmp_path / "hf", tensors, {**CONFIG, "tie_word_embeddings": True})
    source = open_source(folder)
    assert "lm_head.weight" not in source.tensors
    assert set(source.tensors) == set(engine_tensors(source.decoder))


@pytest.mark.parametrize("tied", [True, False])
def test_whether_the_head_is_tied_shows_where_the_config_is_silent(tmp_path: Path, tied: bool) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "tie_word_embeddings"}
    tensors = random_tensors(CONFIG)
    if tied:
        del tensors["lm_head.weight"]
    assert open_source(write_hf_folder(tmp_path / "hf", tensors, config)).config["tie_word_embeddings"] is tied


class TestBrokenFolders:
    def folder(self, tmp_path: Path, shards: int = 1) -> Path:
        return write_hf_folder(tmp_path / "hf", random_tensors(CONFIG), shards=shards)

    def test_no_config(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "config.json").unlink()
        with pytest.raises(SourceError, match=r"hf: has no config\.json; give a Hugging Face model folder"):
            open_source(folder)

    def test_config_no_json(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "config.json").write_text("{")
        with pytest.raises(SourceError, match=r"config.json: is not JSON"):
            open_source(folder)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
    def test_pickled_weights(self, tmp_path: Path, name: str) -> None:
        folder = self.folder(tmp_path)
        (folder / "model.safetensors").rename(folder / name)
        with pytest.raises(UnsupportedModelError, match=f"only pickled weights .{name}."):
            open_source(folder)
        with pytest.raises(UnsupportedModelError, match="can run code"):
            open_source(folder / name)

    def test_no_weights(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "model.safetensors").unlink()
        with pytest.raises(SourceError, match=r"neither model.safetensors nor"):
            open_source(folder)

    def test_missing_shard(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, shards=3)
        (folder / "model-00002-of-00003.safetensors").unlink()
        with pytest.raises(SourceError, match=r"model-00002-of-00003.safetensors: can't be read"):
            open_source(folder)

    @pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "", "..", 3])
    def test_index_that_leaves_the_folder(self, tmp_path: Path, shard: object) -> None:
        folder = self.folder(tmp_path, shards=2)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
        with pytest.raises(SourceError, match="is not a plain file name"):
            open_source(folder)

    def test_index_that_promises_too_much(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, shards=2)
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
        index.write_text(json.dumps(content))
        with pytest.raises(SourceError, match="lacks the tensor 'ghost'"):
            open_source(folder)

    def test_integer_weights(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int32)
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(UnsupportedModelError, match=r"'model.norm.weight' is I32, not floating point"):
            open_source(folder)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="no such file or folder"):
            open_source(tmp_path / "none")

    def test_a_lone_safetensors_file(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="give the folder"):
            open_source(self.folder(tmp_path) / "model.safetensors")
