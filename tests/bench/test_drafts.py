"""`redoubt bench drafts`: drafts are right as often as is asked for, whatever the model's own layer drafts."""

import pytest

from app.engine.native_runner import NativeRunner
from app.engine.speculative.model_drafts import DraftCost
from app.engine.speculative.predictor_drafts import PredictorDrafts
from app.engine.speculative.step_cost import StepCost
from bench.drafts import load, predicted_s
from bench.drafts_rig import RatedDrafts, Rig, compared
from tests.engine.speculative.test_predictor_native import MODELS
from tests.kernels.tiny_model import described_tensors, write_described

PROMPTS = [tuple(range(number, 40 + number)) for number in range(2)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> NativeRunner:
    decoder = MODELS["hybrid"]
    folder = tmp_path_factory.mktemp("drafts") / "model"
    write_described(folder, decoder, {"max_position_embeddings": 2048}, described_tensors(decoder), "sym_int4")
    return load(folder, 1, predicts=True)


def test_the_rate_of_right_drafts_is_set(runner: NativeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is planned must not depend on how long the steps of a tiny model take.
    monkeypatch.setattr(StepCost, "record", lambda *_: None)
    monkeypatch.setattr(DraftCost, "record", lambda *_: None)
    monkeypatch.setattr(NativeRunner, "predictor_share", 0.02)
    assert predicted_s(runner) > 0
    rig = Rig(runner, PredictorDrafts(runner))
    texts = rig.run(PROMPTS, 200, drafts=False).texts
    rig.close()
    rate, by_prompt = 0.85, dict(zip(PROMPTS, texts, strict=True))
    drafts = RatedDrafts(PredictorDrafts(runner), rate, by_prompt, runner.vocab_size)
    rig = Rig(runner, drafts)
    default, one = compared(rig, drafts, [PROMPTS], 200, rounds=1, depths=(1,))
    rig.close()
    assert abs(one["right"] / one["drafted"] - rate) < 0.1
    assert default["steps"] < one["steps"] < 0.7 * 200
