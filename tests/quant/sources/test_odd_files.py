"""Odd files, by what is odd: each is refused with one line that says what to do, and none is waited for."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quant.conversion.convert import convert
from quant.errors import QuantError
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf, write_hf_folder

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _without(name: str, *others: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        for other in others:
            (folder / other).write_bytes(b"{}")

    return change


def _renamed(name: str, other: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).rename(folder / other)


def _filled(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe for a tokenizer": (lambda folder: _pipe(folder / "tokenizer.json"), "tokenizer.json: is a pipe or a device"),
    "pipe for weights": (lambda folder: _pipe(folder / "model.safetensors"), "is a pipe or a device"),
    "pipe for an index": (lambda folder: _pipe(folder / "model.safetensors.index.json"), "is a pipe or a device"),
    "pipe for a template": (lambda folder: _pipe(folder / "chat_template.jinja"), "is a pipe or a device"),
    "pipe for settings": (lambda folder: _pipe(folder / "generation_config.json"), "is a pipe or a device"),
    "template in Latin-1": (_filled("chat_template.jinja", b"caf\xe9"), "chat_template.jinja: can't be read as UTF-8"),
    "half a character": (_filled("tokenizer_config.json", rb'{"a": "\ud800"}'), "tokenizer_config.json: is not JSON"),
    "pointers": (_filled("model.safetensors", POINTER), "is a Git LFS pointer.*git lfs pull"),
    "pointer to a tokenizer": (_filled("tokenizer.json", POINTER), "tokenizer.json: is a Git LFS pointer"),
    "tekken only": (_without("tokenizer.json", "tekken.json"), "only tekken.json, which is not read: load it with"),
    "tiktoken only": (_without("tokenizer.json", "qwen.tiktoken"), "only qwen.tiktoken, which is not read"),
    "adapter": (_without("config.json", "adapter_config.json"), r"is an adapter \(LoRA\): merge it"),
    "adapter with a configuration": (_without("model.safetensors", "adapter_config.json"), "is an adapter"),
    "GGUF in a folder": (_without("config.json", "model.gguf"), "give that file, model.gguf"),
    "Mistral's form": (_renamed("model.safetensors", "consolidated.safetensors"), "in Mistral's own form"),
    "other name": (_renamed("model.safetensors", "weights.safetensors"), "weights.safetensors, which is not named"),
    "ONNX": (_renamed("model.safetensors", "model.onnx"), "it has ONNX files"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_folder(case: str, tmp_path: Path) -> None:
    change, message = CASES[case]
    folder = write_hf_folder(tmp_path / "in", random_tensors(CONFIG))
    change(folder)
    with pytest.raises(QuantError, match=message) as error:
        convert(folder, tmp_path / "out", method="rtn", progress=False)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_templates_without_names(tmp_path: Path) -> None:
    """A list of templates may hold anything; one that is called default counts."""
    folder = write_hf_folder(tmp_path / "in", random_tensors(CONFIG))
    (folder / "chat_template.jinja").unlink()
    named = [{"name": [], "template": "x"}, 1, {"name": "default", "template": "right"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    convert(folder, tmp_path / "out", method="rtn", progress=False)
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text())["chat_template"] == "right"


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG))
    raw = path.read_bytes()
    name = b"token_embd.weight"
    at = raw.index(name) + len(name) + 4 + 2 * 8
    path.write_bytes(raw[:at] + (21).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(QuantError, match=r"'token_embd.weight' is IQ3_S, which is not read; take the model's file in"):
        convert(path, tmp_path / "out", progress=False)


def test_a_text_that_never_ends(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "in", random_tensors(CONFIG))
    with pytest.raises(QuantError, match="/dev/zero: is a pipe or a device, not a file"):
        convert(folder, tmp_path / "out", method="gptq", calibration_text=Path("/dev/zero"), progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
