"""A dense native model drafts for models of other families, in all that may befall a request: the same tokens."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.memory.engine_memory import MemoryOptions
from app.engine.native_runner import NativeRunner
from app.engine.scheduling.limits import least_state_pages
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.step_cost import StepCost
from app.messages.failures import ConstraintError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest, Priority, SamplingParams
from kernels import _native
from quant.codes.matrix import WeightType
from quant.families.description import Attention, Decoder, Experts, Layer, Mlp
from tests.app.memory.pages import grant_for
from tests.engine.memory.stores import DictStore
from tests.engine.native_runs import (
    GREEDY,
    Alternating,
    Answer,
    answer_of,
    check_aborted_texts,
    differences,
    interrupted,
    made_text,
    requests_of_lengths,
)
from tests.engine.speculative.test_predictor_native import CONFIG, CONV, DELTA, DENSE, FULL, MODELS, tensors_of
from tests.engine.test_engine import Receiver
from tests.kernels.tiny_model import F32, write_described

MOST = 20
"""So many sequences at once: more than are drafted for."""
SHARED = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
TARGETS = {
    "dense": DENSE,
    "experts": replace(DENSE, kinds=(Layer(Attention(32**-0.5), experts=Experts(6, 2, 64)),)),
    "convolutions": replace(DENSE, kinds=(CONV, FULL), layers=(0, 1, 0)),
    "states": replace(DENSE, kinds=(DELTA, FULL), layers=(0, 1, 0)),
    "windows": replace(DENSE, kinds=(Layer(Attention(32**-0.5, window=40), mlp=Mlp(96)), FULL), layers=(0, 1)),
    "latent": MODELS["latent"],
    "wide": replace(DENSE, hidden_size=128, kinds=(Layer(Attention(32**-0.5), mlp=Mlp(192)),)),
}
AUTO = {"compute_type": "auto", "prompt_compute_type": "auto", "kv_type": "auto"}
"""A service's defaults: bf16 where the processor has AMX."""
BF16_TIERS = {"scalar", "amx_int8"}

FEW_PAGES = {"windows": 24, "convolutions": 14, "experts": 11}
"""With which sequences are preempted."""


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


def make_runner(
    folder: Path,
    name: str,
    *,
    drafts: bool = False,
    kind: WeightType = "int8",
    group: int = 32,
    kv_pages: int = 400,
    **options: Any,
) -> NativeRunner:
    """name: of the target. drafts: the model that drafts for it. Models are written once."""
    path = folder / f"{'draft for ' if drafts else ''}{name} {kind} {group}"
    if not path.is_dir():
        target = replace(TARGETS[name], predictor=None)
        draft = replace(DENSE, hidden_size=target.hidden_size, layers=(0,), predictor=None)
        tensors = sure_tensors(target)
        if drafts:
            tensors = {**sure_tensors(draft), **{key: tensors[key] for key in SHARED}}
        config = {**CONFIG, "hidden_size": target.hidden_size}
        write_described(path, draft if drafts else target, config, tensors, kind, group)
    return NativeRunner(
        str(path),
        threads=1,
        kv_pages=kv_pages,
        max_sequences=MOST,
        max_step_tokens=64,
        max_context_tokens=512,
        page_groups=name == "windows" and not drafts,
        state_pages=least_state_pages(MOST) + 6,
        **{**AUTO, **options},
    )


def drafts_for(folder: Path, target: str) -> DraftModel:
    return DraftModel(make_runner(folder, target, drafts=True), target_vocab_size=96, most_tokens=4, cost_share=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def answers_of(
    requests: Sequence[GenerateRequest], runner: NativeRunner, drafts: DraftModel | None, *, case: str = ""
) -> tuple[dict[str, Answer], Engine]:
    engine = Engine(runner, expected_output_tokens=1, prompt_chunk_tokens=48, drafts=drafts)
    receiver = Receiver()
    for request in requests:
        receiver.submit(engine, request)
        if case == "aborts":
            receiver.submit(engine, replace(request, request_id=f"{request.request_id}, aborted", max_new_tokens=300))
    with interrupted(engine) if case == "interrupted" else nullcontext():
        engine.start()
        answers = {}
        for request in requests:
            answers[request.request_id] = answer_of(receiver, request.request_id)
            engine.abort(f"{request.request_id}, aborted")
    engine.stop()
    assert engine.statistics().pages_used == 0
    assert (engine.statistics().preemptions > 0) == (case == "preempted")
    return answers, engine


def scored(requests: Sequence[GenerateRequest], max_new_tokens: int) -> list[GenerateRequest]:
    """With the log-probabilities of their tokens and of the likeliest three."""
    return [
        replace(
            one,
            max_new_tokens=max_new_tokens,
            sampling=one.sampling if one.search else replace(one.sampling, logprobs=3),
        )
        for one in requests
    ]


@pytest.mark.parametrize(
    ("target", "case"),
    [("dense", "interrupted"), ("experts", "20 at once"), ("experts", "preempted"), ("states", "aborts"),
     ("convolutions", "preempted"), ("windows", "preempted"), ("windows", "interrupted"), ("latent", "aborts")],
)  # fmt: skip
def test_a_dense_model_drafts_for_others(folder: Path, target: str, case: str) -> None:
    requests = scored(requests_of_lengths((1, 31, 33, 71, 100)), 40)
    if case == "20 at once":  # there are drafts once five have ended
        requests = scored(requests_of_lengths(range(20, 20 + MOST))[:-1], 24)
        requests[:5] = [replace(one, max_new_tokens=4) for one in requests[:5]]
    elif case == "interrupted":
        requests = [replace(one, priority=Priority.BATCH) for one in requests]
    expected, _ = answers_of(requests, make_runner(folder, target), None)
    for _ in range(20):  # interruptions may leave no time for drafts
        drafts = drafts_for(folder, target)
        runner = make_runner(folder, target, kv_pages=FEW_PAGES[target] if case == "preempted" else 400)
        found, engine = answers_of(requests, runner, drafts, case=case)
        assert differences(found, expected) == []
        assert not engine.statistics().drafts_failed
        assert drafts._pool.used_count == 0
        drafted, right = engine.statistics().drafts["model"]
        if 0 < right < drafted or case != "interrupted":
            break
    assert 0 < right < drafted


def arithmetics() -> Iterator[Any]:
    """Every tier of this machine, and every type of pages and of computing in the best of them."""
    tiers = _native.available_tiers()
    int8 = {"compute_type": "int8", "prompt_compute_type": "same"}
    bf16 = {"compute_type": "bf16", "prompt_compute_type": "same", "kv_type": "bf16"}
    for tier in tiers:
        yield pytest.param(tier, {**int8, "kv_type": "int16"}, "sym_int4", 64, id=f"{tier}-int8")
        if tier in BF16_TIERS:
            yield pytest.param(tier, bf16, "int8", 32, id=f"{tier}-bf16")
            mixed = {"compute_type": "int8", "prompt_compute_type": "bf16", "kv_type": "bf16"}
            yield pytest.param(tier, mixed, "sym_int4", 64, id=f"{tier}-int8 and prompts in bf16")
    fp32 = {"compute_type": "fp32", "prompt_compute_type": "same", "kv_type": "fp32"}
    for name, options, kind in (
        ("int8 with pages of int8", {**int8, "kv_type": "int8"}, "int8"),
        ("int8 with pages of bf16", {**int8, "kv_type": "bf16"}, "int8"),
        ("fp32", fp32, "int8"),
        ("fp32 of weights in bf16", fp32, "bf16"),
        ("auto", AUTO, "sym_int4"),
    ):
        yield pytest.param(tiers[-1], options, kind, 32, id=f"{tiers[-1]}-{name}")


@pytest.mark.parametrize(("tier", "options", "kind", "group"), list(arithmetics()))
def test_in_every_arithmetic(
    folder: Path,
    tier: str,
    options: dict[str, Any],
    kind: WeightType,
    group: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 12 rows and fewer, and with drafts of up to 60: kernels take rows in other numbers, to the same bits."""
    monkeypatch.setenv("REDOUBT_ISA", tier)
    few = tier == "scalar"  # it is slow
    requests = scored(requests_of_lengths(range(5, 17) if few else range(20, 32))[:-1], 12 if few else 24)
    runners = [make_runner(folder, "wide", kind=kind, group=group, **options) for _ in range(2)]
    expected, _ = answers_of(requests, runners[0], None)
    drafts = drafts_for(folder, "wide")
    found, engine = answers_of(requests, runners[1], drafts)
    assert differences(found, expected) == [], runners[1].arithmetic
    drafted, right = engine.statistics().drafts["model"]
    assert 0 < right < drafted


def test_an_answer_ends_within_a_draft(folder: Path) -> None:
    """At the first of its stop tokens, wherever that is drafted."""
    asked = requests_of_lengths((31, 60))[:-1]
    whole, _ = answers_of(asked, make_runner(folder, "dense"), None)
    requests, wanted = [], {}
    for request in asked:
        tokens = whole[request.request_id].tokens
        for place in range(10, 40, 3):
            name = f"{request.request_id} until {place}"
            wanted[name] = Answer(tokens[: tokens.index(tokens[place])], (), "stop")
            requests.append(replace(request, request_id=name, stop_token_ids=frozenset({tokens[place]})))
    found, engine = answers_of(requests, make_runner(folder, "dense"), drafts_for(folder, "dense"))
    assert differences(found, wanted) == []
    assert engine.statistics().accepted_tokens > 0


@pytest.mark.parametrize("target", ["dense", "states"])
def test_an_aborted_text_leaves_no_wrong_page(folder: Path, target: str) -> None:
    same: dict[str, Any] = {"compute_type": "int8", "prompt_compute_type": "same"}
    engines = [
        Engine(make_runner(folder, target, **same), expected_output_tokens=1, drafts=drafts)
        for drafts in (drafts_for(folder, target), None)
    ]
    check_aborted_texts(*engines)
    for engine in engines:
        engine.stop()
    drafted, right = engines[0].statistics().drafts["model"]
    assert 0 < right < drafted


@pytest.mark.parametrize(
    ("target", "options"),
    [("dense", {"kv_type": "int16"}), ("experts", {"kv_type": "int8"}), ("latent", {"kv_type": "bf16"}),
     ("dense", {"kv_type": "fp32", "compute_type": "fp32", "prompt_compute_type": "same"})],
    ids=["int16", "int8", "bf16", "fp32"],
)  # fmt: skip
def test_saved_pages_are_those_without_drafts(folder: Path, target: str, options: dict[str, Any]) -> None:
    """The same names, and under each the same bytes: whatever was drafted leaves nothing behind."""
    prompt = tuple(made_text(40)) * 3
    request = GenerateRequest("one", prompt, 160, GREEDY, tenant=b"", memory=grant_for("ada"))

    def pages_of(drafts: DraftModel | None, guess_tokens: int) -> tuple[Answer, dict[tuple[bytes, bytes], bytes]]:
        runner, receiver = make_runner(folder, target, **options), Receiver()
        store = DictStore(runner.gathered_page_bytes)
        engine = Engine(
            runner, expected_output_tokens=1, guess_tokens=guess_tokens, drafts=drafts, page_store=store,
            memory=MemoryOptions(save_after_s=1e9, restore="always", min_tokens=1),
        )  # fmt: skip
        receiver.submit(engine, request)
        engine.start()
        answer = answer_of(receiver, "one")
        assert engine.memory is not None
        assert engine.memory.flush(None).result(60).unsaved_pages == 0
        engine.stop()
        store.close()
        assert (engine.statistics().accepted_tokens > 0) == (drafts is not None or guess_tokens > 0)
        return answer, store.pages

    expected, pages = pages_of(None, 0)
    assert len(pages) == (len(prompt) + 160) // _native.PAGE_TOKENS
    for drafts, guess_tokens in ((drafts_for(folder, target), 0), (None, 5)):
        found, others = pages_of(drafts, guess_tokens)
        assert differences({"one": found}, {"one": expected}) == []
        assert others.keys() == pages.keys()
        assert [name for name, data in others.items() if data != pages[name]] == []


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


@pytest.mark.parametrize("target", ["states", "convolutions"])
def test_turns_are_found_behind_drafts(folder: Path, target: str) -> None:
    """In both models' caches, wherever the turn before has ended: texts are the same as without them."""
    drafts = drafts_for(folder, target)
    cached, plain = (
        Engine(make_runner(folder, target), drafts=drafts),
        Engine(make_runner(folder, target), prefix_cache=False),
    )
    text, receivers = made_text(400), (Receiver(), Receiver())
    for engine in (cached, plain):
        engine.start()
    said: tuple[int, ...] = ()
    for end in (129, 192, 255):
        asked = (*said, *text[len(said) : max(len(said) + 10, 80)])
        turn = GenerateRequest(f"{end}", asked, end - len(asked), GREEDY, tenant=b"")
        for engine, receiver in zip((cached, plain), receivers, strict=True):
            receiver.submit(engine, turn)
        answer, expected = (receiver.tokens(turn.request_id) for receiver in receivers)
        assert answer == expected
        said = (*asked, *answer)
    for engine in (cached, plain):
        engine.stop()
    assert cached.statistics().cached_tokens == 128 + 160
    assert drafts._pool.cached_count >= 224 // 32
    assert cached.statistics().accepted_tokens > 60
