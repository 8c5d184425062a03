"""Recognizes folders that are no checkpoint in transformers' form, and advises their owner. Opens no file."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

_OTHER_NAMES: Final = "*.safetensors"
_FORMS: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    (
        "adapter_config.json",
        lambda _: (
            "it is an adapter (LoRA): merge it into its base model with peft's merge_and_unload and"
            " save_pretrained, and convert that"
        ),
    ),
    ("*.gguf", lambda name: f"it has a GGUF file: give that file, {name}"),
    (
        "consolidated*.safetensors",
        lambda name: (
            f"{name} is in Mistral's own form: download the files of transformers' form too"
            " (config.json, model*.safetensors), or take a GGUF"
        ),
    ),
    (
        _OTHER_NAMES,
        lambda name: (
            f"its weights are in {name}, which is not named model.safetensors and which no"
            " model.safetensors.index.json lists: rename it, or download the index"
        ),
    ),
    ("*.onnx", lambda _: "it has ONNX files: download the model's safetensors"),
)


def other_form(folder: Path) -> str | None:
    """Advice for a folder without config.json or without weights; None if it is not recognized."""
    for pattern, hint in _FORMS:
        if pattern == _OTHER_NAMES and not (folder / "config.json").exists():
            continue
        found = sorted(path.name for path in folder.glob(pattern))
        if found:
            return hint(found[0])
    return None
