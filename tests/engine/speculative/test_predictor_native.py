"""Models that draft with a layer of multi-token prediction or an EAGLE-3 head, under the engine: the same tokens."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.memory.engine_memory import MemoryOptions
from app.engine.native_runner import NativeRunner, kv_pages_within
from app.engine.scheduling.limits import least_state_pages
from app.engine.speculative.predictor_drafts import EAGLE, MTP, PredictorDrafts
from app.engine.speculative.step_cost import StepCost
from app.messages.requests import ContextWindow, GenerateRequest, Priority, SamplingParams
from app.settings.applications import ModelApplicationSettings
from app.workers.drafts import drafting_bytes, load_drafts
from app.workers.load import load_model
from app.workers.numa import Slot
from kernels import _native
from quant.families.description import (
    Attention,
    Decoder,
    DeltaNet,
    Experts,
    Latent,
    Layer,
    Mlp,
    Predictor,
    Rope,
    ShortConv,
)
from tests import sizes
from tests.app.memory.pages import grant_for
from tests.engine.memory.stores import DictStore, gathered
from tests.engine.native_runs import (
    GREEDY,
    PAGE,
    Outputs,
    answer_of,
    check_aborted_texts,
    differences,
    interrupted,
    made_text,
    outputs,
    outputs_one_by_one,
    requests_of_lengths,
)
from tests.engine.test_engine import Receiver
from tests.engine.test_thoughts import budget_of
from tests.kernels.tiny_model import F32, described_tensors, write_described

CONTEXT = 512
HIDDEN = 64
FULL = Layer(Attention(32**-0.5), mlp=Mlp(96))
DENSE = Decoder(
    vocab_size=96, hidden_size=HIDDEN, max_positions=2048, heads=4, kv_heads=2, head_dim=32,
    ropes=(Rope(32, tuple(10000 ** (-i / 16) for i in range(16))),), kinds=(FULL,), layers=(0, 0),
    predictor=Predictor(0),
)  # fmt: skip
DELTA = Layer(delta=DeltaNet(key_heads=2, value_heads=4, key_dim=32, value_dim=32), mlp=Mlp(96))
CONV = Layer(conv=ShortConv(taps=4, bias=True), mlp=Mlp(96))
LATENT = Attention(0.2, latent=Latent(kv_rank=32, nope_dim=32, rope_dim=16, value_dim=32, query_rank=64))
MODELS = {
    "dense": DENSE,
    "hybrid": replace(DENSE, kinds=(DELTA, FULL, CONV), layers=(0, 1, 2), predictor=Predictor(1)),
    "latent": replace(  # with experts behind the first layer, and in the predictor
        DENSE,
        kv_heads=1,
        head_dim=48,
        kinds=(Layer(LATENT, mlp=Mlp(96)), Layer(LATENT, experts=Experts(6, 2, 64, shared_inner=64))),
        layers=(0, 1),
        predictor=Predictor(1),
        ropes=(Rope(16, tuple(10.0 ** (-i / 4) for i in range(8))),),
    ),
    "eagle": replace(DENSE, layers=(0,) * 6, predictor=None),
}
HEAD = replace(
    DENSE,
    kinds=(Layer(Attention(32**-0.5), mlp=Mlp(64), attention_norm=False),),
    layers=(),
    predictor=Predictor(0, 64, eagle=True),
)
HEAD_NAME = "head"
CONFIG: dict[str, Any] = {"max_position_embeddings": 2048, "hidden_size": HIDDEN, "vocab_size": 96}
# threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages
SHAPES = {
    "few at a time": (2, 3, 64, 64, 400),
    "batched": (2, 6, 256, 256, 400),
    "chunked": (1, 8, 43, 35, 400),
    "preempted": (1, 8, 64, 64, 20),
    "looked up too": (1, 4, 80, 64, 400),
}


@pytest.fixture(scope="module", autouse=True)
def _predictors_seem_cheap(drafts_seem_cheap: pytest.MonkeyPatch) -> None:
    drafts_seem_cheap.setattr(NativeRunner, "predictor_share", 0.02)
    drafts_seem_cheap.setattr("app.engine.memory.loads._ALWAYS_DEADLINE_S", 600.0)


def tensors_of(decoder: Decoder) -> dict[str, F32]:
    """A predictor that is often right: what follows depends on the last token most of all, in it and in the model."""
    tensors = described_tensors(decoder)
    for name, values in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "output_proj.weight")):
            tensors[name] = values * np.float32(0.1 if ".conv." in name else 0.3)
    if decoder.predictor is None:
        return tensors
    tensors["model.predictor.input_proj.weight"] = np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32)
    tensors["model.predictor.embedding_norm.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.predictor.output_norm.weight"] = tensors["model.norm.weight"]
    return tensors


def head_tensors(model: Decoder) -> dict[str, F32]:
    """An EAGLE-3 head that is often right: each token attends to itself, and its embedding is what the state is."""
    own, of_model = described_tensors(HEAD), described_tensors(model)
    tensors = {name: values * np.float32(0.1) for name, values in own.items()}
    key = np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32) * np.float32(3)
    by_head = key.reshape(2, 32, -1)
    tensors["model.predictor.self_attn.q_proj.weight"] = np.concatenate([by_head[[0, 0]], by_head[[1, 1]]]).reshape(
        128, -1
    )
    tensors["model.predictor.self_attn.k_proj.weight"] = key
    tensors["model.predictor.self_attn.v_proj.weight"] = key
    output = np.zeros((HIDDEN, 128), np.float32)
    output[:32, :32] = output[32:, 64:96] = np.eye(32)
    tensors["model.predictor.self_attn.o_proj.weight"] = output
    for name in ("embedding_norm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"model.predictor.{name}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.predictor.output_norm.weight"] = of_model["model.norm.weight"]
    tokens = np.random.default_rng(4).permutation(96)[:64]
    tokens.sort()
    tensors["model.predictor.head.weight"] = of_model["lm_head.weight"][tokens]
    tensors["model.predictor.head_tokens"] = tokens.astype(np.float32)
    return tensors


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    decoder = MODELS[request.param]
    folder = tmp_path_factory.mktemp("predicts") / request.param
    if decoder.predictor is None:
        config = {**CONFIG, "architectures": ["LlamaForCausalLMEagle3"]}
        write_described(folder / HEAD_NAME, HEAD, config, head_tensors(decoder), "int8")
    return write_described(folder, decoder, CONFIG, tensors_of(decoder), "sym_int4")


def predictor_of(model: Path) -> bool | str:
    """As a runner's `predicts`."""
    return str(model / HEAD_NAME) if (model / HEAD_NAME).is_dir() else True


def kind_of(model: Path) -> str:
    return MTP if predictor_of(model) is True else EAGLE


@contextmanager
def running(
    model: Path,
    shape: str,
    *,
    predicts: bool = True,
    kv_type: str = "auto",
    compute_type: str = "auto",
    saved: dict[tuple[bytes, bytes], bytes] | None = None,
    **options: Any,
) -> Iterator[Engine]:
    """saved: the pages of a store, which is used if it is there."""
    threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages = SHAPES[shape]
    runner = NativeRunner(
        str(model),
        threads=threads,
        compute_type=compute_type,
        prompt_compute_type="auto" if compute_type == "auto" else "same",
        kv_type=kv_type,
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_context_tokens=CONTEXT,
        state_pages=least_state_pages(max_sequences) + 6,
        predicts=predicts and predictor_of(model),
    )
    store = None if saved is None else DictStore(runner.gathered_page_bytes, saved)
    engine = Engine(
        runner,
        prompt_chunk_tokens=prompt_chunk_tokens,
        expected_output_tokens=1,
        guess_tokens=5 if shape == "looked up too" else 0,
        drafts=PredictorDrafts(runner, kind=kind_of(model)) if predicts else None,
        page_store=store,
        memory=MemoryOptions(save_after_s=1e9, restore="always", min_tokens=1),
        **options,
    )
    try:
        yield engine
    finally:
        engine.stop()
        if store is not None:
            store.close()
    assert engine.statistics().pages_used == 0


def made_requests() -> list[GenerateRequest]:
    """Three of them are choices of one request."""
    requests = requests_of_lengths((1, 31, 32, 33, 71, 160, 300))
    choices = [
        replace(requests[4], request_id=f"choice {seed}", sampling=SamplingParams(temperature=1.0, seed=seed))
        for seed in range(20, 23)
    ]
    return [*requests, *choices]


@pytest.fixture(scope="module")
def expected(model: Path) -> Outputs:
    """Without the predictor, without a cache, one after the other."""
    with running(model, "batched", predicts=False, prefix_cache=False) as engine:
        return outputs_one_by_one(engine, made_requests())


def check_some_are_right(engine: Engine, model: Path) -> None:
    drafted, accepted = engine.statistics().drafts[kind_of(model)]
    assert 0.05 * drafted < accepted < drafted  # how many are drafted depends on measured times


@pytest.mark.parametrize(("shape", "prefix_cache"), sizes.some([*SHAPES], [True, False]))
def test_no_token_changes(shape: str, prefix_cache: bool, model: Path, expected: Outputs) -> None:
    assert len(set(expected.values())) == len(expected)
    requests = made_requests()
    with running(model, shape, prefix_cache=prefix_cache) as engine:
        assert outputs(engine, requests) == expected
        assert outputs(engine, requests[::-1]) == expected, "from the cache, in another order"
        counts = engine.statistics()
        assert (counts.preemptions > 0) == (shape == "preempted")
        assert (counts.cached_tokens > 0) == prefix_cache
        check_some_are_right(engine, model)


def test_pages_of_eight_bits(model: Path) -> None:
    requests = made_requests()
    with running(model, "batched", predicts=False, kv_type="int8") as engine:
        expected = outputs(engine, requests)
    with running(model, "batched", kv_type="int8") as engine:
        assert outputs(engine, requests) == expected
        check_some_are_right(engine, model)


def test_log_probabilities_are_the_same(model: Path) -> None:
    """Bit by bit, greedy and drawn."""
    requests = [
        replace(request, sampling=replace(request.sampling, logprobs=2))
        for request in made_requests()
        if request.search is None
    ]
    found = []
    for predicts in (False, True):
        receiver = Receiver()
        with running(model, "batched", predicts=predicts) as engine:
            for request in requests:
                receiver.submit(engine, request)
            engine.start()
            found.append({request.request_id: answer_of(receiver, request.request_id) for request in requests})
    assert differences(*found) == []
    assert all(answer.scores for answer in found[0].values())
    check_some_are_right(engine, model)


def test_batches_that_are_interrupted(model: Path, expected: Outputs) -> None:
    requests = [replace(request, priority=Priority.BATCH) for request in made_requests()]
    with running(model, "chunked") as engine, interrupted(engine):
        assert outputs(engine, requests) == expected
        assert engine.statistics().interruptions > 0


def test_aborts_leave_the_others_alone(model: Path, expected: Outputs) -> None:
    receiver, requests = Receiver(), made_requests()
    with running(model, "chunked") as engine:
        for request in requests:
            receiver.submit(engine, request)
            receiver.submit(engine, replace(request, request_id=f"{request.request_id}, aborted", max_new_tokens=150))
        engine.start()
        for request in requests:
            time.sleep(0.002)
            engine.abort(f"{request.request_id}, aborted")
        for request in requests:
            assert receiver.tokens(request.request_id) == expected[request.request_id]


@pytest.mark.parametrize("model", ["dense", "hybrid"], indirect=True)
def test_an_aborted_text_leaves_no_wrong_page(model: Path) -> None:
    with (
        running(model, "few at a time", predicts=False, compute_type="int8") as plain,
        running(model, "few at a time", compute_type="int8") as engine,
    ):
        check_aborted_texts(engine, plain)
        assert engine.statistics().accepted_tokens > 0


def test_an_answer_ends_within_a_draft(model: Path, expected: Outputs) -> None:
    """At the first of its stop tokens, wherever that is drafted."""
    requests, wanted = [], {}
    for request in made_requests():
        for place in range(20, 60, 7) if request.search is None else ():
            whole = expected[request.request_id]
            name = f"{request.request_id} until {place}"
            wanted[name] = whole[: whole.index(whole[place])]
            requests.append(replace(request, request_id=name, stop_token_ids=frozenset({whole[place]})))
    with running(model, "batched") as engine:
        assert outputs(engine, requests) == wanted
        check_some_are_right(engine, model)


def test_a_grammar(model: Path) -> None:
    """What it forbids is not drafted, and each row has a mask of its own."""
    requests = [request for request in made_requests() if request.search is None]
    found = []
    for predicts in (False, True):
        with running(model, "looked up too", predicts=predicts) as engine:
            found.append(outputs(engine, requests, alternate=True))
            if predicts:
                check_some_are_right(engine, model)
    assert found[0] == found[1]
    assert all([token % 2 for token in text[:4]] == [0, 1, 0, 1] for text in found[0].values())


def test_an_answer_goes_on_with_another_worker(model: Path, expected: Outputs) -> None:
    """One with the predictor, and one without."""
    requests = [
        replace(request, request_id=f"{request.request_id} after {place}", resumed_token_ids=whole[:place])
        for request in made_requests()
        if request.search is None
        for whole in (expected[request.request_id],)
        for place in (1, 40)
    ]
    wanted = {
        request.request_id: expected[request.request_id.partition(" after")[0]][len(request.resumed_token_ids) :]
        for request in requests
    }
    for predicts in (True, False):
        with running(model, "batched", predicts=predicts) as engine:
            assert outputs(engine, requests) == wanted
            if predicts:
                check_some_are_right(engine, model)


def test_thoughts_with_a_budget_and_contexts_that_are_shifted(model: Path) -> None:
    """Beside each other: drafts end where the budget does, and the keys of drafts move with the others."""
    window = None if model.name == "hybrid" else ContextWindow(tokens=96, keep_tokens=32, discard_tokens=32)
    end, budgets = (90, 91, 92, 93, 94), range(20, 44)
    shifted = [
        replace(request, max_new_tokens=120, thought=budget_of(70, end=end), window=window)
        for request in made_requests()
        if request.search is None and len(request.prompt_token_ids) < 96
    ]
    cut = [
        GenerateRequest(f"{tokens} only", tuple(range(40)), 60, GREEDY, tenant=b"", thought=budget_of(tokens, end=end))
        for tokens in budgets
    ]
    found = []
    for predicts in (False, True):
        with running(model, "few at a time", predicts=predicts) as engine:
            found.append(outputs(engine, [*shifted, *cut]))
    check_some_are_right(engine, model)
    assert found[0] == found[1]
    assert all(found[0][f"{tokens} only"][tokens:][: len(end)] == end for tokens in budgets)


@pytest.mark.parametrize("model", ["dense", "eagle"], indirect=True)
def test_drafts_are_drawn_with_the_requests_random_numbers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So they are right more often than the likeliest tokens would be, and as often where hardly anything is drawn."""
    monkeypatch.setattr(StepCost, "seconds", lambda *_: 1.0)  # all steps draft

    def share(temperature: float) -> float:
        requests = [
            GenerateRequest(
                f"{seed}", tuple(made_text(40)), 200, SamplingParams(temperature=temperature, seed=seed), tenant=b""
            )
            for seed in range(1, 4)
        ]
        with running(model, "few at a time") as engine:
            texts = outputs(engine, requests)
            drafted, right = engine.statistics().drafts[kind_of(model)]
        assert len(set(texts.values())) == (1 if temperature < 0.1 else 3)
        return right / drafted

    drawn, nearly_greedy = share(0.7), share(1e-4)
    monkeypatch.setattr(PredictorDrafts, "_sampler", lambda *_: None)
    assert drawn > 1.2 * share(0.7)
    assert nearly_greedy == pytest.approx(share(1e-4), rel=0.1)


@pytest.mark.parametrize("model", ["dense", "latent", "eagle"], indirect=True)
def test_saved_pages_have_the_predictors_keys(model: Path) -> None:
    """Drafts are as often right behind pages that another worker has saved; one without a predictor has other pages."""
    request = GenerateRequest("one", tuple(made_text(160)), 90, GREEDY, tenant=b"", memory=grant_for("ada"))
    saved: dict[tuple[bytes, bytes], bytes] = {}
    found = []
    for _ in range(2):
        with running(model, "batched", saved=saved) as engine:
            found.append((outputs(engine, [request]), engine.statistics().drafts[kind_of(model)]))
            assert engine.memory is not None
            assert engine.memory.flush(None).result(60).unsaved_pages == 0
            there = {gathered(engine._runner, page) for page in range(engine._runner.kv_pages)}
            assert set(saved.values()) <= there
    assert engine.statistics().cached_tokens == 160 - PAGE, "the last token is computed"
    (first, (_, right)), (again, (drafted, right_again)) = found
    assert again == first
    assert 0.9 * right < right_again < drafted
    with running(model, "batched", predicts=False, saved={}) as engine:
        assert outputs(engine, [request]) == first
        assert engine._runner.gathered_page_bytes < len(next(iter(saved.values())))


def test_nothing_of_a_sequence_is_left_in_its_slot(model: Path) -> None:
    """The next one of the slot could take its hidden state for its own, if it gets the same page."""
    request = GenerateRequest("one", tuple(range(40)), 24, GREEDY, tenant=b"")
    with running(model, "few at a time") as engine:
        text = outputs(engine, [request])["one"]
        assert engine.statistics().drafted_tokens > 0
    runner = engine._runner
    assert isinstance(runner, NativeRunner)
    for slot in range(runner.max_sequences):
        for context in range(40, 64):
            assert runner.draft(text[-1:], [context], [slot], [context], [None]) == ([-1], [0.0])
    with pytest.raises(ValueError, match=r"^slot: 3 is not in 0 \.\. 3$"):
        runner.forget_slot(3)


def test_right_drafts_save_steps(model: Path) -> None:
    request = GenerateRequest("one", tuple(range(40)), 200, GREEDY, tenant=b"")
    steps = {}
    for predicts in (False, True):
        with running(model, "few at a time", predicts=predicts) as engine:
            steps[predicts] = outputs(engine, [request]), engine.statistics().steps
    assert steps[True][0] == steps[False][0]
    assert steps[True][1] < 0.8 * steps[False][1]


def test_the_predictor_takes_its_pages_from_the_same_memory(model: Path) -> None:
    layers = sum(
        kind.attention is not None for kind in map(MODELS[model.name].layer, range(len(MODELS[model.name].layers)))
    )
    memory_bytes = 1 << 24
    with_it, without = (
        _native.Model.kv_page_bytes(str(model), "int16", predicts=predicts) for predicts in (predictor_of(model), False)
    )
    assert with_it * layers == without * (layers + 1)
    assert kv_pages_within(str(model), "int16", memory_bytes, predicts=predictor_of(model)) == memory_bytes // with_it
    assert _native.Model.has_predictor(str(model)) == (kind_of(model) == MTP)


def tokens_without(runner: NativeRunner, model: Path) -> int:
    """That would fit without a predictor."""
    state_bytes = runner.state_pages * _native.Model.state_page_bytes(str(model))
    return ((1 << 24) - state_bytes) // _native.Model.kv_page_bytes(str(model), runner.model.kv_type) * PAGE


@pytest.mark.parametrize(("options", "used"), [({}, True), ({"draft_tokens": 2}, True), ({"draft_tokens": 0}, False)])
def test_a_worker_uses_it(options: dict[str, int], used: bool, model: Path) -> None:
    settings = ModelApplicationSettings.model_validate(
        {
            "model": {"folder": str(model)} | ({} if kind_of(model) == MTP else {"draft": predictor_of(model)}),
            "worker": {"bind_memory": False},
            "engine": {"kv_memory_bytes": 1 << 24, "max_context_tokens": CONTEXT, **options},
        }
    )
    slot = Slot(0, (min(os.sched_getaffinity(0)),))
    runner = load_model(settings, model, slot, 1)
    assert isinstance(runner, NativeRunner)
    source = load_drafts(settings, model, slot, 1, runner)
    assert runner.predicts == isinstance(source, PredictorDrafts) == used
    assert runner.kv_pages == tokens_without(runner, model) // PAGE, "as many as without it"
    assert (drafting_bytes(settings, model)[1] > 0) == used
    most = 4 if kind_of(model) == MTP else 8
    assert source is None or (source.kind, source.most_tokens) == (kind_of(model), options.get("draft_tokens", most))


def test_the_end_of_a_context(model: Path) -> None:
    """Drafts stop before the last tokens that fit."""
    request = GenerateRequest(
        "long", tuple(range(40)), CONTEXT - 40, SamplingParams(temperature=0.7, seed=1), tenant=b""
    )
    found = []
    for predicts in (False, True):
        with running(model, "few at a time", predicts=predicts) as engine:
            found.append(outputs(engine, [request])["long"])
    assert len(found[0]) == CONTEXT - 40
    assert found[0] == found[1]
