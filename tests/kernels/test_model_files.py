"""Models whose files a Python object has: the same results as from a folder, and its errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from tests.kernels.tiny_model import LARGER_LLAMA, Sequences, write_random_model

MIB = 1 << 20


class FolderFiles:
    """The files of a folder, read by Python."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.reads: list[tuple[str, int, int]] = []

    def __str__(self) -> str:
        return "somewhere"

    def size(self, name: str) -> int:
        return len(self._files[name])

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        self.reads.append((name, offset, len(buffer)))
        buffer[:] = self._files[name][offset : offset + len(buffer)]


class Broken(FolderFiles):
    """Fails from some place of the weights on."""

    def __init__(self, folder: Path, good_bytes: int) -> None:
        super().__init__(folder)
        self._good_bytes = good_bytes

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        if name == "model.safetensors" and offset + len(buffer) > self._good_bytes:
            raise LookupError("the rest is gone")
        super().read_into(name, offset, buffer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("larger") / "model", LARGER_LLAMA)


@pytest.mark.parametrize("nodes", [[], [0, 0], [0, 1], [0, 1, 1]])
def test_they_make_the_same_model_as_the_folder(folder: Path, nodes: list[int]) -> None:
    options: dict[str, Any] = {"threads": len(nodes) or 1, "nodes": nodes, "bind_weights": False}
    expected = Sequences(folder, **options).logits({0: [1, 2, 3], 1: [4]})
    files = FolderFiles(folder)
    made = Sequences(files, **options)
    assert made.model.weight_memory == "huge_pages"
    assert np.array_equal(made.logits({0: [1, 2, 3], 1: [4]}), expected)
    assert max(size for _, _, size in files.reads) <= 2 * MIB, "a second copy of the weights"


def test_their_configuration_chooses_types_and_sizes(folder: Path) -> None:
    for path_or_files in (str(folder), FolderFiles(folder)):
        assert _native.Model.chosen_kv_type(path_or_files, "auto", "fp32", "same") == "int16"
        assert _native.Model.kv_page_bytes(path_or_files, "bf16") == 2 * 32 * 2 * 2 * 2 * 128


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("good_bytes", [0, 8, 4 * MIB])
def test_what_they_raise_loading_raises(folder: Path, good_bytes: int, threads: int) -> None:
    with pytest.raises(LookupError, match=r"^the rest is gone$"):
        Sequences(Broken(folder, good_bytes), threads=threads)


def test_they_cannot_write_into_a_model_later(folder: Path) -> None:
    kept: list[memoryview] = []

    class Keeping(FolderFiles):
        def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
            super().read_into(name, offset, buffer)
            kept.append(buffer)

    model = Sequences(Keeping(folder))
    assert kept
    for buffer in kept:
        with pytest.raises(ValueError, match="released memoryview"):
            buffer[0] = 1
    assert model.model.layers == 2


@pytest.mark.parametrize("length", [0, 9, 100, -1])
def test_weights_that_are_cut_short_are_refused_by_name(folder: Path, tmp_path: Path, length: int) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(_native.PackedFileError, match=r"^somewhere/model\.safetensors: "):
        Sequences(FolderFiles(tmp_path))


def test_they_are_not_mapped(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^weight_memory: mapped is for weights in a file"):
        Sequences(FolderFiles(folder), weight_memory="mapped")


def test_a_description_that_lies_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    damaged = weights.replace(b'\\"heads\\":4', b'\\"heads\\":0')
    assert damaged != weights
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with pytest.raises(_native.PackedFileError, match=r"^somewhere/model\.safetensors: decoder\.heads: "):
        Sequences(FolderFiles(tmp_path))


def test_nothing_but_the_weights_is_read(folder: Path) -> None:
    files = FolderFiles(folder)
    Sequences(files)
    assert {name for name, _, _ in files.reads} == {"model.safetensors"}
