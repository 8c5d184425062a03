"""What tests of whole models share: a maker of tiny ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quant.codes.matrix import WeightType
from tests.kernels.tiny_model import LLAMA, MakeModel, Sequences, write_random_model


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeModel:
    def make_model(
        config: Mapping[str, Any] = LLAMA, kind: WeightType = "fp32", group: int = 32, tier: str = "", **options: Any
    ) -> Sequences:
        if tier:
            monkeypatch.setenv("REDOUBT_ISA", tier)
        folder = tmp_path / f"{config['model_type']}-{kind}-{group}"
        if not folder.exists():
            write_random_model(folder, config, kind, group)
        return Sequences(folder, **options)

    return make_model
