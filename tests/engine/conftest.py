"""The model that the engine's tests ask where any one does that has the embedded model's vocabulary; steady drafts."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.engine.speculative.model_drafts import DraftCost, ModelDrafts
from app.engine.speculative.step_cost import StepCost
from app.workers.constraints import Constraints
from tests.kernels.tiny_model import LLAMA, random_tensors, write_model
from tests.sizes import FULL

SURENESS = np.float32(6)
"""The standard deviation of its logits: drafts are worth their time only if the likeliest token is likely."""


@pytest.fixture(scope="session")
def engine_model(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With FULL the embedded model. Otherwise one of two small random layers, with its tokenizer and template."""
    if FULL:
        return embedded_model
    config = {**LLAMA, "vocab_size": 49152, "head_dim": 32}
    tensors = random_tensors(config)
    tensors["lm_head.weight"] *= SURENESS
    folder = write_model(tmp_path_factory.mktemp("engine") / "model", config, tensors, "sym_int4")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(embedded_model / name, folder)
    return folder


@pytest.fixture(scope="session")
def engine_constraints(engine_model: Path) -> Iterator[Constraints]:
    """Those of its outputs: reading the tokenizer for them takes as long as many tests."""
    constraints = Constraints(engine_model, json.loads((engine_model / "config.json").read_text())["vocab_size"])
    yield constraints
    constraints.close()


@pytest.fixture(scope="module")
def drafts_seem_cheap() -> Iterator[pytest.MonkeyPatch]:
    """What is planned must not depend on how long a step of a tiny or fake model takes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCost, "record", lambda *_: None)
        patch.setattr(DraftCost, "record", lambda *_: None)
        patch.setattr(ModelDrafts, "_follow_s", lambda _: 1e-9)
        yield patch
