"""An output that another engine has begun goes on here with the same tokens, from wherever it broke off."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.messages.failures import InvalidRequestError
from app.messages.outputs import TokenDelta, TokenScores
from app.messages.requests import BeamParams, ContextWindow, GenerateRequest, SamplingParams
from app.workers.constraints import Constraints
from tests.engine.test_engine import Receiver
from tests.fakes import FakeRunner
from tests.sizes import FULL, examples

TEXT = Path(__file__).parents[1] / "data" / "alice.txt"
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'


def resumed(request: GenerateRequest, known: tuple[int, ...]) -> GenerateRequest:
    return replace(request, request_id=f"{request.request_id} after {len(known)}", resumed_token_ids=known)


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    random = Random(draw(st.integers(0, 1000)))
    window = draw(st.sampled_from([None, ContextWindow(32, 4, 8), ContextWindow(32, 0, 4), ContextWindow(32, 12, 16)]))
    prompt = tuple(random.choices(range(1000), k=draw(st.integers(1, 30))))
    temperature = draw(st.sampled_from([0.0, 1.0]))
    stops = frozenset(random.sample(range(1000), k=draw(st.sampled_from([0, 30]))))
    new_tokens = draw(st.integers(1, 30 if window is None else 90))
    sampling = SamplingParams(temperature=temperature, seed=draw(st.integers(0, 5)))
    return GenerateRequest("whole", prompt, new_tokens, sampling, stops, window=window, tenant=b"")


@given(requests(), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_it_goes_on_from_any_seam_beside_others(request: GenerateRequest, data: st.DataObject) -> None:
    states = data.draw(st.sampled_from([0, 10, 30])) if request.window is None else 0
    runner = FakeRunner(kv_pages=40, max_context_tokens=64, max_sequences=4, state_pages=states)
    whole = runner.expected_tokens(request)
    seams = [seam for seam in range(len(whole)) if seam < request.max_new_tokens]
    chosen = data.draw(st.lists(st.sampled_from(seams), max_size=5, unique=True)) if seams else []
    guess_tokens = data.draw(st.sampled_from([0, 4]))
    engine = Engine(runner, expected_output_tokens=1, guess_tokens=guess_tokens)
    receiver = Receiver()
    for seam in chosen:
        receiver.submit(engine, resumed(request, whole[:seam]))
    receiver.submit(engine, request)
    engine.start()
    try:
        for seam in chosen:
            assert whole[:seam] + receiver.tokens(f"whole after {seam}") == whole
        assert receiver.tokens("whole") == whole
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0


def test_a_seam_at_every_token_even_while_preempted() -> None:
    runner = FakeRunner(kv_pages=12, max_context_tokens=48, max_sequences=4, max_step_tokens=8)
    sampling = SamplingParams(temperature=1.0, seed=3)
    request = GenerateRequest("whole", tuple(range(17)), 25, sampling, tenant=b"")
    whole = runner.expected_tokens(request)
    engine, receiver = Engine(runner, expected_output_tokens=1), Receiver()
    for seam in range(1, 25):
        receiver.submit(engine, resumed(request, whole[:seam]))
    engine.start()
    for seam in range(1, 25):
        assert whole[:seam] + receiver.tokens(f"whole after {seam}") == whole
    engine.stop()
    assert engine.statistics().preemptions > 0


def test_the_prompt_counts_as_cached_for_the_first_engine_only() -> None:
    runner = FakeRunner()
    request = GenerateRequest("whole", tuple(range(12)), 8, SamplingParams(temperature=0.0), tenant=b"")
    whole = runner.expected_tokens(request)
    engine, receiver = Engine(runner), Receiver()
    engine.start()
    receiver.submit(engine, request)
    receiver.tokens("whole")
    receiver.submit(engine, resumed(request, whole[:3]))
    assert receiver.tokens("whole after 3") == whole[3:]
    engine.stop()
    deltas = [delta for delta in receiver.events["whole after 3"] if isinstance(delta, TokenDelta)]
    assert [delta.cached_tokens for delta in deltas] == [0] * 5
    assert engine.statistics().computed_tokens < 2 * 19  # its pages were found all the same


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resumed_token_ids": (1, 2, 3, 4)}, "can't go on after 4"),
        ({"resumed_token_ids": (1000,)}, "1000"),
        ({"sampling": SamplingParams(temperature=1.0)}, "seed"),
        ({"search": BeamParams(2)}, "sampled"),
        ({"prompt_logprobs": 0}, "sampled"),
    ],
)
def test_what_cannot_go_on(changes: dict[str, Any], message: str) -> None:
    request = GenerateRequest("x", (1, 2), 4, SamplingParams(temperature=0.0), tenant=b"", resumed_token_ids=(5,))
    engine = Engine(StrictRunner())
    with pytest.raises(InvalidRequestError, match=message):
        Receiver().submit(engine, replace(request, **changes))
    engine.stop()


class StrictSampler:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def remember(self, tokens: tuple[int, ...]) -> None:
        if max(tokens) >= 1000:
            raise ValueError(f"remember: token {max(tokens)} is outside the vocabulary")


class StrictRunner(FakeRunner):
    """Refuses tokens outside the vocabulary, as the native sampler does."""

    def make_sampler(self, *arguments: Any, **named: Any) -> Any:
        return StrictSampler(super().make_sampler(*arguments, **named))


# --- A native model


@pytest.fixture(scope="module")
def text_ids(engine_model: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(engine_model / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids
    return ids


NATIVE: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": SamplingParams(temperature=0.0)},
    "penalties": {"sampling": SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5)},
    "drawn": {"sampling": SamplingParams(temperature=1.0, top_p=0.9, top_k=50, presence_penalty=0.4, seed=11)},
    "scores": {"sampling": SamplingParams(temperature=0.8, seed=5, logprobs=3)},
    "at least": {"sampling": SamplingParams(temperature=1.2, seed=7, min_new_tokens=12)},
    "schema": {"sampling": SamplingParams(temperature=0.9, seed=2), "grammar": SCHEMA},
    "window": {"sampling": SamplingParams(temperature=0.0), "window": ContextWindow(96, 8, 32), "max_new_tokens": 150},
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_model_goes_on_from_every_seam(
    engine_model: Path, engine_constraints: Constraints, text_ids: list[int], name: str
) -> None:
    """Many seams beside each other, one at a page's end: batches, chunks and pages all differ from the clean run."""
    runner = NativeRunner(
        str(engine_model), threads=1, kv_pages=256, max_sequences=16, max_step_tokens=128, max_context_tokens=512
    )
    ends = frozenset({0, 2})
    options = {"max_new_tokens": 40} | NATIVE[name]
    if options["sampling"].min_new_tokens:
        options["sampling"] = replace(options["sampling"], end_token_ids=ends)
    request = GenerateRequest("whole", tuple(text_ids[50:117]), stop_token_ids=ends, tenant=b"", **options)
    engine, receiver = Engine(runner, guess_tokens=4), Receiver()
    engine.start()

    def submit(asked: GenerateRequest) -> None:
        constraint = None if asked.grammar is None else engine_constraints.compile(asked.grammar)
        engine.submit(asked, receiver.deliver, asked.request_id, constraint)

    try:
        submit(request)
        whole = receiver.tokens("whole")
        assert len(whole) > 8
        step = 1 if FULL else 3
        seams = range(max(1, step - 1), len(whole), 10 * step if request.window is not None else step)
        for seam in seams:
            submit(resumed(request, whole[:seam]))
        for seam in seams:
            name = f"whole after {seam}"
            assert whole[:seam] + receiver.tokens(name) == whole
            assert receiver.finish_reason(name) == receiver.finish_reason("whole")
            if request.sampling.logprobs is not None:
                _assert_same_scores(scores_of(receiver, name), scores_of(receiver, "whole"), seam)
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0


def scores_of(receiver: Receiver, name: str) -> TokenScores:
    deltas = [delta for delta in receiver.events[name] if isinstance(delta, TokenDelta)]
    joined = TokenScores.joined([delta.scores for delta in deltas if delta.scores is not None])
    assert joined is not None
    return joined


def _assert_same_scores(rest: TokenScores, whole: TokenScores, seam: int) -> None:
    np.testing.assert_array_equal(rest.logprobs, whole.logprobs[seam:])
    np.testing.assert_array_equal(rest.top_token_ids, whole.top_token_ids[seam:])
    np.testing.assert_array_equal(rest.top_logprobs, whole.top_logprobs[seam:])
