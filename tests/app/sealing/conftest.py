"""A small converted model of several chunks, and its sealed image."""

from pathlib import Path

import pytest

from app.sealing.image import CHUNK_BYTES, KEY_BYTES
from app.sealing.seal import seal
from app.sealing.sealed_model import SealedModel
from tests.kernels.tiny_model import LARGER_LLAMA, write_random_model

KEY = bytes(range(KEY_BYTES))
OTHER_SIZES = {"empty": 0, "one": 1, "whole_chunk": CHUNK_BYTES, "two_chunks": CHUNK_BYTES + 1}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights have several chunks, and there are files of other sizes beside them."""
    folder = write_random_model(tmp_path_factory.mktemp("sealing") / "small", LARGER_LLAMA)
    for name, size in OTHER_SIZES.items():
        (folder / name).write_bytes((name.encode() * size)[:size])
    (folder / "chat_template.jinja").write_text("{{ 'ä' }}", encoding="utf-8")
    (folder / "a folder").mkdir()
    return folder


@pytest.fixture(scope="session")
def sealed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sealed") / "small.sealed"
    seal(folder, out, KEY, progress=False)
    return out


def contents(model: SealedModel, name: str) -> bytes:
    """A whole file."""
    content = bytearray(model.size(name))
    model.read_into(name, 0, memoryview(content))
    return bytes(content)
