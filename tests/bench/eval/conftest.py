"""What the tests of the evaluation share: a tiny checkpoint, and what is made of it."""

from pathlib import Path

import pytest

from quant.conversion.convert import convert
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a random model with a byte tokenizer."""
    tensors = {
        name: values * (0.1 if values.ndim == 2 else 1.0) for name, values in random_tensors(CONFIG, seed=3).items()
    }
    return write_hf_folder(tmp_path_factory.mktemp("checkpoint") / "hf", tensors)


@pytest.fixture(scope="session")
def packed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, converted to sym_int4."""
    out = tmp_path_factory.mktemp("packed") / "int4"
    convert(checkpoint, out, qtype="sym_int4", group_size=32, method="rtn", progress=False)
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where unfinished runs are noted, apart from the user's."""
    monkeypatch.setenv("REDOUBT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A few hundred byte tokens."""
    path = tmp_path / "text.txt"
    path.write_text("It was the best of times, it was the worst of times. " * 12, encoding="utf-8")
    return path
