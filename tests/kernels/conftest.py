"""What tests of whole models share: a maker of tiny ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quant.codes.matrix import WeightType
from tests.kernels.tiny_model import LLAMA, MakeModel, Sequences, write_random_model


@pytest.fixture(scope="session")
def written_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of random models by what they are of: each is written once, and no test changes one."""
    return {"": tmp_path_factory.mktemp("models")}


@pytest.fixture
def make(written_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> MakeModel:
    def make_model(
        config: Mapping[str, Any] = LLAMA, kind: WeightType = "fp32", group: int = 32, tier: str = "", **options: Any
    ) -> Sequences:
        if tier:
            monkeypatch.setenv("REDOUBT_ISA", tier)
        key = json.dumps([dict(config), kind, group])
        if key not in written_models:
            folder = written_models[""] / str(len(written_models))
            written_models[key] = write_random_model(folder, config, kind, group)
        return Sequences(written_models[key], **options)

    return make_model
