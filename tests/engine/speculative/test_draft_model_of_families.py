"""A dense native model drafts for models of other families, in all that may befall a request: the same tokens."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.engine.scheduling.limits import least_state_pages
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.step_cost import StepCost
from app.messages.failures import ConstraintError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest, Priority, SamplingParams
from quant.families.description import Attention, Decoder, Experts, Layer, Mlp
from tests.engine.native_runs import GREEDY, Alternating, Outputs, interrupted, made_text, requests_of_lengths
from tests.engine.speculative.test_predictor_native import CONFIG, DELTA, DENSE, FULL, MODELS, tensors_of
from tests.engine.test_engine import Receiver
from tests.kernels.tiny_model import F32, write_described

SHARED = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
TARGETS = {
    "dense": DENSE,
    "experts": replace(DENSE, kinds=(Layer(Attention(32**-0.5), experts=Experts(6, 2, 64)),)),
    "states": replace(DENSE, kinds=(DELTA, FULL), layers=(0, 1, 0)),
    "windows": replace(DENSE, kinds=(Layer(Attention(32**-0.5, window=40), mlp=Mlp(96)), FULL), layers=(0, 1)),
    "latent": MODELS["latent"],
}


@pytest.fixture(scope="module", autouse=True)
def _probes_are_never_free(drafts_seem_cheap: pytest.MonkeyPatch) -> None:
    drafts_seem_cheap.setattr("app.engine.speculative.model_drafts._FREE_PROBES", 0)
    drafts_seem_cheap.setattr(StepCost, "PRIOR", tuple(1 + 0.001 * rows for rows in StepCost.ROWS))


def sure_tensors(decoder: Decoder) -> dict[str, F32]:
    """What follows depends on the last token most of all, and is likely."""
    tensors = tensors_of(decoder)
    for name, values in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "output_proj.weight")):
            tensors[name] = values * np.float32(0.5)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * np.float32(4)
    return tensors


def make_runner(folder: Path, name: str, *, drafts: bool = False) -> NativeRunner:
    """name: of the target. drafts: the model that drafts for it. Models are written once."""
    path = folder / (f"draft for {name}" if drafts else name)
    if not path.is_dir():
        target, draft = (replace(one, predictor=None) for one in (TARGETS[name], replace(DENSE, layers=(0,))))
        tensors = sure_tensors(target)
        if drafts:
            tensors = {**sure_tensors(draft), **{key: tensors[key] for key in SHARED}}
        write_described(path, draft if drafts else target, CONFIG, tensors, "int8")
    return NativeRunner(
        str(path),
        threads=1,
        kv_type="int16",
        kv_pages=400,
        max_sequences=17,
        max_step_tokens=64,
        max_context_tokens=512,
        page_groups=name == "windows" and not drafts,
        state_pages=least_state_pages(17) + 6,
    )


def drafts_for(folder: Path, target: str) -> DraftModel:
    return DraftModel(make_runner(folder, target, drafts=True), target_vocab_size=96, most_tokens=4, cost_share=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def texts_of(
    requests: Sequence[GenerateRequest],
    runner: NativeRunner,
    drafts: DraftModel | None,
    *,
    case: str,
) -> tuple[Outputs, Engine]:
    engine = Engine(
        runner, expected_output_tokens=1, prompt_chunk_tokens=48, drafts=drafts, prefix_cache=case != "uncached"
    )
    receiver = Receiver()
    for request in requests:
        receiver.submit(engine, request)
        if case == "aborts":
            receiver.submit(engine, replace(request, request_id=f"{request.request_id}, aborted", max_new_tokens=300))
    with interrupted(engine) if case == "interrupted" else nullcontext():
        engine.start()
        texts = {}
        for request in requests:
            texts[request.request_id] = receiver.tokens(request.request_id)
            engine.abort(f"{request.request_id}, aborted")
    engine.stop()
    assert engine.statistics().pages_used == 0
    return texts, engine


@pytest.mark.parametrize(
    ("target", "case"),
    [("dense", "interrupted"), ("experts", "16 at once"), ("states", "aborts"), ("windows", "uncached"),
     ("windows", "interrupted"), ("latent", "aborts")],
)  # fmt: skip
def test_a_dense_model_drafts_for_others(folder: Path, target: str, case: str) -> None:
    requests = [replace(one, max_new_tokens=40) for one in requests_of_lengths((1, 31, 33, 71, 100))]
    if case == "16 at once":
        requests = requests_of_lengths(range(20, 36))[:-1]
        requests = [replace(one, max_new_tokens=20) for one in requests]
    if case == "interrupted":
        requests = [replace(one, priority=Priority.BATCH) for one in requests]
    expected, _ = texts_of(requests, make_runner(folder, target), None, case="")
    for _ in range(20):  # interruptions may leave no time for drafts
        drafts = drafts_for(folder, target)
        found, engine = texts_of(requests, make_runner(folder, target), drafts, case=case)
        assert found == expected
        assert not engine.statistics().drafts_failed
        assert drafts._pool.used_count == 0
        drafted, right = engine.statistics().drafts["model"]
        if 0 < right < drafted or case != "interrupted":
            break
    assert 0 < right < drafted


class Limited(Alternating):
    """It becomes too complex after so many tokens."""

    def __init__(self, left: int, odd: int = 0) -> None:
        super().__init__(odd)
        self.left = left

    def accept(self, token: int) -> None:
        super().accept(token)
        self.left -= 1
        if self.left < 0:
            self.error = "too complex"

    def copy(self) -> "Limited":
        return Limited(self.left, self.odd)


def test_tokens_before_a_grammars_limit_are_delivered(folder: Path) -> None:
    requests = [
        GenerateRequest(f"{left}", tuple(made_text(20)), 40, SamplingParams(temperature=0.5, seed=1), tenant=b"")
        for left in range(8, 20)
    ]
    drafts = DraftModel(make_runner(folder, "dense"), target_vocab_size=96, most_tokens=4, cost_share=0.02)
    engine, receiver = Engine(make_runner(folder, "dense"), drafts=drafts), Receiver()
    engine.start()
    for request in requests:
        receiver.submit(engine, request, Limited(int(request.request_id)))
        error = receiver.error(request.request_id)
        assert isinstance(error, ConstraintError)
        *deltas, _ = receiver.events[request.request_id]
        assert sum(len(each.token_ids) for each in deltas if isinstance(each, TokenDelta)) == int(request.request_id)
    engine.stop()
    assert engine.statistics().accepted_tokens > 20, "the limit is met among drafts"


def test_the_same_prompt_is_found_in_the_draft_models_cache(folder: Path) -> None:
    """A second turn behind a first one: its text is the same as without both caches."""
    text = made_text(160)
    turns = [GenerateRequest(f"{end}", tuple(text[:end]), 40, GREEDY, tenant=b"") for end in (100, 160)]
    expected = [texts_of([turn], make_runner(folder, "dense"), None, case="uncached")[0] for turn in turns]
    drafts = drafts_for(folder, "dense")
    engine, receiver = Engine(make_runner(folder, "dense"), drafts=drafts), Receiver()
    engine.start()
    for turn, wanted in zip(turns, expected, strict=True):
        receiver.submit(engine, turn)
        assert receiver.tokens(turn.request_id) == wanted[turn.request_id]
    engine.stop()
    assert engine.statistics().cached_tokens == 96
    assert drafts._pool.cached_count >= 160 // 32
