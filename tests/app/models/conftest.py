"""A hub, a store and a home of their own, so that no test sees the user's, and no speed is measured."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from app.capacity.processors import table_machine
from app.commands import coming
from app.models import hub as hub_client
from tests.hub import Hub, running_hub
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf, write_hf_folder


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store's folder, which is not there yet."""
    monkeypatch.setenv("REDOUBT_MODELS", str(tmp_path / "store"))
    monkeypatch.setattr(coming, "read_machine", lambda name, memory: table_machine("epyc-9354", memory))
    monkeypatch.setattr(hub_client, "_LONGEST_PAUSE_S", 0.01)
    return tmp_path / "store"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with running_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        try:
            yield running
        finally:
            huggingface_hub.close_session()


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in two files."""
    return write_hf_folder(tmp_path_factory.mktemp("checkpoint") / "hf", random_tensors(CONFIG), shards=2)


@pytest.fixture(scope="session")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as GGUFs of two types, whose codes are kept, and one beside it that is no model."""
    import gguf

    folder = tmp_path_factory.mktemp("ggufs")
    tensors = random_tensors(CONFIG)
    for kind in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0):
        write_gguf(folder / f"tiny-{kind.name}.gguf", tensors, kind=kind)
    (folder / "mmproj-tiny-F16.gguf").write_bytes(b"GGUF")
    return folder
