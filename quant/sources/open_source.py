"""Opens a checkpoint: a Hugging Face folder of safetensors, of a model or an EAGLE-3 head, or a GGUF file."""

from pathlib import Path

from quant.errors import SourceError, UnsupportedModelError
from quant.families.eagle import is_eagle_head
from quant.files.json_file import read_json_object
from quant.sources.eagle_head import open_eagle_head
from quant.sources.gguf_source import open_gguf
from quant.sources.hf_folder import open_hf_folder
from quant.sources.other_forms import other_form
from quant.sources.source import Source

__all__ = ["open_source"]


def open_source(path: Path) -> Source:
    """Opens a checkpoint: a Hugging Face folder or a GGUF file.

    Raises SourceError (missing, damaged, incomplete) or UnsupportedModelError (not supported).
    """
    if path.is_dir():
        if not (path / "config.json").is_file():
            hint = other_form(path) or "give a Hugging Face model folder, as it was downloaded, or a GGUF file"
            raise SourceError(f"{path}: has no config.json; {hint}")
        config = read_json_object(path / "config.json")
        return open_eagle_head(path, config) if is_eagle_head(config) else open_hf_folder(path)
    if path.exists() and not path.is_file():
        raise SourceError(f"{path}: is a pipe or a device, not a file")
    if not path.is_file():
        raise SourceError(f"{path}: no such file or folder")
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise UnsupportedModelError(
            f"{path}: pickled weights can run code when they are loaded; use safetensors or GGUF"
        )
    if path.suffix == ".safetensors":
        raise SourceError(f"{path}: give the folder, which has config.json and the tokenizer too")
    return open_gguf(path)
