"""A model of layout 1 gets today's header, and keeps its weights bit for bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion import embedded_model
from quant.conversion.convert import convert
from quant.errors import OutputError, SourceError
from quant.files.safetensors_file import read_header
from quant.packed.packed_file import PackedFile
from tests.kernels.tiny_model import LLAMA, random_tensors, write_model

# As the converter of layout 1 completed a configuration.
CONFIG = {
    **LLAMA, "architectures": ["LlamaForCausalLM"], "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "tie_word_embeddings": True,
    "attention_bias": False, "mlp_bias": False, "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip


def rewritten(folder: Path, change: Any) -> None:
    """Changes the header's metadata, as an older version had written it."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "old", CONFIG, random_tensors(CONFIG), kind="asym_int4")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps(CONFIG))

    def change(metadata: dict[str, str]) -> None:
        metadata["layout_version"] = "1"
        del metadata["decoder"]

    rewritten(folder, change)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    return {name: raw[each.offset : each.offset + each.size_bytes] for name, each in read_header(path)[0].items()}


def test_the_weights_are_copied_and_the_description_added(old: Path, tmp_path: Path) -> None:
    report = convert(old, tmp_path / "new", progress=False)
    assert (report.qtype, report.group_size) == ("asym_int4", 32)
    assert contents(tmp_path / "new") == contents(old)
    assert list(contents(tmp_path / "new")) == list(contents(old))
    decoder = PackedFile(tmp_path / "new" / "model.safetensors").decoder
    assert np.allclose(decoder.ropes[0].frequencies, 10000.0 ** (-np.arange(8) / 8) / 2)
    assert (tmp_path / "new" / "tokenizer.json").read_text() == "{}"
    assert CONFIG.items() <= json.loads((tmp_path / "new" / "config.json").read_text()).items()
    offsets = [each.offset % 64 for each in read_header(tmp_path / "new" / "model.safetensors")[0].values()]
    assert not any(offsets)


def test_the_same_folder_needs_force(old: Path) -> None:
    before = contents(old)
    with pytest.raises(OutputError, match="exists already"):
        convert(old, old, progress=False)
    convert(old, old, force=True, progress=False)
    assert contents(old) == before
    assert PackedFile(old / "model.safetensors").decoder.layers == (0, 0)


def test_options_and_todays_layout_are_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="its weights stay as they are: give no options"):
        convert(old, tmp_path / "new", qtype="int8", progress=False)
    convert(old, tmp_path / "new", progress=False)
    with pytest.raises(SourceError, match="is a converted model already: redoubt serve"):
        convert(tmp_path / "new", tmp_path / "again", progress=False)


def test_a_config_that_does_not_fit_the_weights_is_named(old: Path, tmp_path: Path) -> None:
    (old / "config.json").write_text(json.dumps({**CONFIG, "intermediate_size": 96}))
    with pytest.raises(SourceError, match=r"'model.layers.0.mlp.gate_proj.weight' has the shape \(160, 64\)"):
        convert(old, tmp_path / "new", progress=False)
    (old / "config.json").write_text(json.dumps(CONFIG))
    rewritten(old, lambda metadata: metadata.update(matrices="[1]"))
    with pytest.raises(SourceError, match="'matrices' metadata is damaged"):
        convert(old, tmp_path / "new", progress=False)


def test_the_embedded_model_is_not_fetched_again(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update must not need the network for a model that is there."""
    before = contents(old)
    old.rename(tmp_path / embedded_model.NAME)
    monkeypatch.setattr(embedded_model, "fetch", lambda *_: pytest.fail("fetched"))
    embedded_model.make_chat_model(tmp_path)
    assert contents(tmp_path / embedded_model.NAME) == before
    PackedFile(tmp_path / embedded_model.NAME / "model.safetensors")
