"""A worker's draft model: its memory, and models that can't be one."""

import json
import os
from pathlib import Path

import pytest

from app.draft_check import DraftError
from app.engine.engine import Engine
from app.engine.speculative.draft_model import DraftModel
from app.messages.requests import GenerateRequest, SamplingParams
from app.settings.applications import ModelApplicationSettings
from app.workers.drafts import drafting_bytes, load_drafts
from app.workers.load import load_model
from app.workers.numa import Slot
from app.workers.worker import _draft_name
from kernels import _native
from quant.families.description import DeltaNet
from tests.engine.test_engine import Receiver
from tests.kernels.hybrid_model import with_delta, write_hybrid
from tests.kernels.tiny_model import LLAMA, write_random_model

HERE = Slot(0, tuple(sorted(os.sched_getaffinity(0)))[:1])
KV_BYTES = 4 << 20


def with_files(folder: Path, first: str = "a") -> Path:
    vocab = {first: 0, "b": 1}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_files(write_random_model(tmp_path_factory.mktemp("models") / "target"))


def settings_with(target: Path, draft: Path | None) -> ModelApplicationSettings:
    model = {"folder": str(target)} | ({} if draft is None else {"draft": str(draft)})
    values = {"model": model, "engine": {"kv_memory_bytes": KV_BYTES}, "worker": {"bind_memory": False}}
    return ModelApplicationSettings.model_validate(values)


def test_a_draft_models_pages_come_beside_the_models_and_change_no_token(target: Path, tmp_path: Path) -> None:
    draft = with_files(write_random_model(tmp_path / "draft", {**LLAMA, "num_hidden_layers": 1}))
    request = GenerateRequest("one", tuple(range(40)), 60, SamplingParams(temperature=0.0), tenant=b"")
    texts = []
    for settings in (settings_with(target, None), settings_with(target, draft)):
        runner = load_model(settings, target, HERE, 1)
        drafts = load_drafts(settings, target, HERE, 1, runner)
        if drafts is not None:
            assert isinstance(drafts, DraftModel)
            own, of_draft = (_native.Model.kv_page_bytes(str(folder), "int16") for folder in (target, draft))
            assert drafts._pool.page_count == runner.kv_pages
            weights, keys = drafting_bytes(settings, target)
            assert weights == (draft / "model.safetensors").stat().st_size
            assert keys == -(-KV_BYTES * of_draft // own)
        assert runner.kv_pages == KV_BYTES // _native.Model.kv_page_bytes(str(target), "int16")
        engine, receiver = Engine(runner, drafts=drafts), Receiver()
        engine.start()
        receiver.submit(engine, request)
        texts.append(receiver.tokens("one"))
        assert engine.release_memory().result()
        receiver.events.clear()
        receiver.submit(engine, request)  # with pages that were given back
        assert receiver.tokens("one") == texts[0]
        engine.stop()
    assert drafts is not None
    assert engine.statistics().drafted_tokens > 0
    assert texts[0] == texts[1]


def test_models_that_cannot_draft_are_refused(target: Path, tmp_path: Path) -> None:
    delta = DeltaNet(key_heads=4, value_heads=16, key_dim=32, value_dim=64)
    hybrid = with_files(write_hybrid(tmp_path / "hybrid", with_delta(delta)))
    other = with_files(write_random_model(tmp_path / "other"), first="c")
    runner = load_model(settings_with(target, None), target, HERE, 1)
    for draft, reason in (
        (hybrid, r"^model\.draft: .*hybrid has recurrent states, which a draft model can't have$"),
        (
            other,
            r"^model\.draft: .*other has another vocabulary than target: token 0 is 'c' there and 'a' here\. A draft",
        ),
        (tmp_path / "nothing", r"^model\.draft: .*nothing is not a converted model\. Convert it first"),
    ):
        with pytest.raises(DraftError, match=reason):
            load_drafts(settings_with(target, draft), target, HERE, 1, runner)


def test_only_what_drafts_is_named(target: Path, tmp_path: Path) -> None:
    draft = with_files(write_random_model(tmp_path / "small", {**LLAMA, "num_hidden_layers": 1}))
    settings = settings_with(target, draft)
    runner = load_model(settings, target, HERE, 1)
    drafts = load_drafts(settings, target, HERE, 1, runner)
    assert _draft_name(settings, drafts) == "small"
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update={"draft_tokens": 0})})
    assert _draft_name(settings, load_drafts(settings, target, HERE, 1, runner)) is None
    assert drafting_bytes(settings, target) == (0, 0)
    assert _draft_name(settings_with(target, None), drafts) == "model"
