"""Damage at random: whatever happens to a checkpoint's bytes, its reader raises an error of ours or reads it."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from quant.conversion.convert import convert
from quant.errors import QuantError
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf, write_hf_folder

_ROUNDS = 150


def damaged(original: bytes, header_bytes: int) -> Iterator[bytes]:
    """The file with one to three header bytes changed, or cut off somewhere."""
    generator = random.Random(7)
    for number in range(_ROUNDS):
        content = bytearray(original)
        for _ in range(generator.randint(1, 3)):
            content[generator.randrange(header_bytes)] = generator.choice((0, 1, 0x7F, 0xFF, generator.randrange(256)))
        yield bytes(content if number % 10 else content[: generator.randrange(len(content))])


def survives(source: Path, out: Path) -> bool:
    try:
        convert(source, out, method="rtn", force=True, progress=False)
    except QuantError:
        return False
    return True


def test_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG))
    original = path.read_bytes()
    header_bytes = original.index(b"blk.1.ffn_down.weight") + 64
    outcomes = []
    for content in damaged(original, header_bytes):
        path.write_bytes(content)
        outcomes.append(survives(path, tmp_path / "out"))
    assert outcomes.count(False) > _ROUNDS // 10


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_hugging_face_folder(tmp_path: Path, name: str) -> None:
    folder = write_hf_folder(tmp_path / "hf", random_tensors(CONFIG))
    original = (folder / name).read_bytes()
    header_bytes = 8 + int.from_bytes(original[:8], "little") if name == "model.safetensors" else len(original)
    outcomes = []
    for content in damaged(original, header_bytes):
        (folder / name).write_bytes(content)
        outcomes.append(survives(folder, tmp_path / "out"))
    assert outcomes.count(False) > _ROUNDS // 10
