import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quant.codes.matrix import QuantizedMatrix
from quant.errors import SourceError, UnsupportedModelError
from quant.sources.model_config import complete_config, expected_tensors
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


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def test_a_tied_head_is_dropped_and_old_buffers_too(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    folder = write_hf_folder(tmp_path / "hf", tensors, {**CONFIG, "tie_word_embeddings": True})
    source = open_source(folder)
    assert "lm_head.weight" not in source.tensors
    assert set(source.tensors) == set(expected_tensors(source.config))


@pytest.mark.parametrize("tied", [True, False])
def test_whether_the_head_is_tied_shows_where_the_config_is_silent(tmp_path: Path, tied: bool) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "tie_word_embeddings"}
    tensors = random_tensors(CONFIG)
    if tied:
        del tensors["lm_head.weight"]
    assert open_source(write_hf_folder(tmp_path / "hf", tensors, config)).config["tie_word_embeddings"] is tied


class TestConfig:
    def test_defaults_are_filled_in(self) -> None:
        raw = {key: value for key, value in CONFIG.items() if key not in ("num_key_value_heads", "rope_theta")}
        config, notes = complete_config(raw, "x")
        assert notes == []
        assert config["num_key_value_heads"] == 4
        assert config["head_dim"] == 32
        assert config["rope_theta"] == 10000.0
        assert config["hidden_act"] == "silu"

    def test_new_spelling_of_rope(self) -> None:
        parameters = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
        raw = {key: value for key, value in CONFIG.items() if key != "rope_theta"} | {"rope_parameters": parameters}
        config, _ = complete_config(raw, "x")
        assert config["rope_theta"] == 5e5
        assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
        assert "rope_parameters" not in config

    def test_old_spelling_of_rope(self) -> None:
        config, _ = complete_config({**CONFIG, "rope_scaling": {"type": "linear", "factor": 2.0}}, "x")
        assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}

    def test_a_sliding_window_limits_the_context(self) -> None:
        config, notes = complete_config({**CONFIG, "model_type": "mistral", "sliding_window": 64}, "x")
        assert config["max_position_embeddings"] == 64
        assert config["sliding_window"] is None
        assert "64 tokens" in notes[0]
        config, notes = complete_config(
            {**CONFIG, "model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, "x"
        )
        assert (config["max_position_embeddings"], notes) == (512, [])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "gpt_neox"}, "model type 'gpt_neox' is not supported; supported: llama"),
            ({"model_type": None}, "model type None"),
            ({"model_type": ["llama"]}, "model type .'llama'. is not supported"),
            ({"auto_map": {"AutoModel": "x.py"}}, "its own Python code"),
            ({"quantization_config": {"quant_method": "bitsandbytes"}}, "already quantized .bitsandbytes."),
            ({"hidden_act": "gelu"}, "activation 'gelu'"),
            ({"rope_scaling": {"rope_type": "longrope"}}, "RoPE scaling 'longrope'"),
            ({"partial_rotary_factor": 0.5}, "part of the head"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(UnsupportedModelError, match=message):
            complete_config({**CONFIG, **changes}, "x")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"hidden_size": None}, "hidden_size is missing"),
            ({"hidden_size": "128"}, "hidden_size is '128'"),
            ({"hidden_size": True}, "hidden_size is True"),
            ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
            ({"num_attention_heads": 3}, "3 heads do not divide"),
            ({"num_key_value_heads": 3}, "do not fit together"),
            ({"head_dim": 33}, "do not fit together"),
            ({"rms_norm_eps": "small"}, "rms_norm_eps"),
            ({"rope_theta": -1}, "rope_theta is -1"),
            ({"rope_scaling": "linear"}, "not an object"),
        ],
    )
    def test_wrong(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(SourceError, match=message):
            complete_config({**CONFIG, **changes}, "x")


@pytest.mark.parity
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_tensors_expected_are_those_that_transformers_makes(family: str, bias: bool) -> None:
    import torch
    import transformers

    sizes = {key: value for key, value in CONFIG.items() if isinstance(value, int) and not key.endswith("_id")}
    hf_config = getattr(transformers, f"{family}Config")(**sizes, attention_bias=bias, mlp_bias=bias)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(hf_config)
    config, _ = complete_config(json.loads(hf_config.to_json_string(use_diff=False)), "x")
    theirs = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in expected_tensors(config).items()} == theirs


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
