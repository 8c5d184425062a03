"""What tests of drafts share."""

from collections.abc import Iterator

import pytest

from app.engine.speculative.model_drafts import DraftCost, ModelDrafts
from app.engine.speculative.step_cost import StepCost


@pytest.fixture(scope="module")
def drafts_seem_cheap() -> Iterator[pytest.MonkeyPatch]:
    """What is planned must not depend on how long a step of a tiny or fake model takes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCost, "record", lambda *_: None)
        patch.setattr(DraftCost, "record", lambda *_: None)
        patch.setattr(ModelDrafts, "_follow_s", lambda _: 1e-9)
        yield patch
