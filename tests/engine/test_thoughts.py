"""The end of a thought whose budget is used up: written into the output as if it had been sampled."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.interface.functions.call_grammar import answer_grammar
from app.interface.functions.dialect import json_rule
from app.interface.thinking.marks import FAMILIES, Thought
from app.messages.failures import InvalidRequestError
from app.messages.outputs import TokenDelta
from app.messages.requests import BeamParams, ContextWindow, GenerateRequest, SamplingParams
from app.messages.thoughts import ThoughtBudget
from app.workers.constraints import Constraints
from tests.engine.speculative.test_draft_model import FakeDraftRunner, drafting
from tests.engine.test_engine import Receiver
from tests.engine.test_resumed import TEXT, resumed, scores_of
from tests.fakes import FakeRunner
from tests.sizes import examples

END = (901, 902, 903, 904, 905)
GREEDY = SamplingParams(temperature=0.0)

pytestmark = pytest.mark.usefixtures("drafts_seem_cheap")


def budget_of(
    tokens: int, closings: Sequence[int] = (), openings: Sequence[int] | None = None, end: tuple[int, ...] = END
) -> ThoughtBudget:
    """openings: None: the prompt ends within the thought."""
    spelled = dict.fromkeys(closings, b"</t>") | dict.fromkeys(openings or (), b"<t>")
    return ThoughtBudget(tokens, end, b"<t>", b"</t>", spelled, is_open=openings is None)


def written_of(budget: ThoughtBudget) -> Any:
    """What follows an output so far, by the output alone."""

    def written(output: Sequence[int]) -> Sequence[int]:
        texts = [budget.spelled.get(token) for token in output]
        thought = texts if budget.is_open else texts[1:]
        if (not budget.is_open and texts[0] != b"<t>") or b"</t>" in thought:
            return ()
        return budget.end if len(thought) == budget.tokens else ()

    return written


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    random = Random(draw(st.integers(0, 1000)))
    window = draw(st.sampled_from([None, None, ContextWindow(32, 4, 8), ContextWindow(32, 12, 16)]))
    prompt = tuple(random.choices(range(1000), k=draw(st.integers(1, 30))))
    stops = frozenset(random.sample(range(900), k=draw(st.sampled_from([0, 30]))))
    new_tokens = draw(st.integers(1, 30 if window is None else 90))
    sampling = SamplingParams(temperature=draw(st.sampled_from([0.0, 1.0])), seed=draw(st.integers(0, 5)))
    closings = random.sample(range(900), k=draw(st.sampled_from([0, 60])))
    openings = None if draw(st.booleans()) else [token for token in range(900) if token not in closings]
    budget = budget_of(draw(st.integers(1, 25)), closings, openings)
    return GenerateRequest("whole", prompt, new_tokens, sampling, stops, window=window, tenant=b"", thought=budget)


def seams_of(receiver: Receiver, name: str) -> list[int]:
    """Where the output could break off: behind each of its deltas."""
    lengths = [len(delta.token_ids) for delta in receiver.events[name] if isinstance(delta, TokenDelta)]
    return [sum(lengths[: place + 1]) for place in range(len(lengths) - 1)]


@given(requests(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_it_is_written_wherever_the_output_runs(request: GenerateRequest, data: st.DataObject) -> None:
    """Beside others, with and without drafts, preempted, gone on with elsewhere, and with a window that shifts."""
    assert request.thought is not None
    states = data.draw(st.sampled_from([0, 10, 30])) if request.window is None else 0
    groups = data.draw(st.sampled_from([(0,), (0, 7), (0, 3, 3, 20)])) if request.window is None else (0,)
    runner = FakeRunner(
        kv_pages=data.draw(st.sampled_from([20, 40])) * len(groups),
        max_context_tokens=64,
        max_sequences=4,
        state_pages=states,
        group_windows=groups,
    )
    whole = runner.expected_tokens(request, written_of(request.thought))
    right = data.draw(st.sampled_from([None, 0.7]))
    engine = Engine(
        runner,
        expected_output_tokens=1,
        guess_tokens=data.draw(st.sampled_from([0, 4])),
        drafts=None if right is None else drafting(FakeDraftRunner(right=right)),
    )
    receiver = Receiver()
    others = [
        replace(request, request_id="free", thought=None),
        replace(request, request_id="later", prompt_token_ids=(*request.prompt_token_ids[:-1], 7)),
    ]
    twin = replace(request, request_id="twin")  # one of the two computes a page of the end, and the other waits
    for other in (request, *others, twin):
        receiver.submit(engine, other)
    engine.start()
    try:
        assert receiver.tokens("whole") == receiver.tokens("twin") == whole
        assert receiver.tokens("free") == runner.expected_tokens(others[0])
        assert receiver.tokens("later") == runner.expected_tokens(others[1], written_of(request.thought))
        seams = seams_of(receiver, "whole")
        for seam in data.draw(st.lists(st.sampled_from(seams), max_size=4, unique=True)) if seams else []:
            receiver.submit(engine, resumed(request, whole[:seam]))
            assert whole[:seam] + receiver.tokens(f"whole after {seam}") == whole
        deltas = [delta for delta in receiver.events["whole"] if isinstance(delta, TokenDelta)]
        assert sum(delta.cached_tokens for delta in deltas) < len(request.prompt_token_ids)
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0
    assert not engine.statistics().drafts_failed


def test_a_guess_goes_no_further_than_the_budget() -> None:
    """The prompt repeats itself, and so do the guesses: the sampler must not take a token behind the budget."""
    runner = FakeRunner(vocab_size=2, kv_pages=200, max_context_tokens=256)  # a text of two letters repeats itself
    for tokens in range(1, 40):
        engine, receiver = Engine(runner, guess_tokens=8), Receiver()
        end = (1, 0, 1)
        budget = budget_of(tokens, end=end)
        request = GenerateRequest(f"{tokens}", (0, 1) * 20, 60, GREEDY, tenant=b"", thought=budget)
        receiver.submit(engine, request)
        engine.start()
        output = receiver.tokens(f"{tokens}")
        engine.stop()
        assert output == runner.expected_tokens(request, written_of(budget))
        assert output[tokens : tokens + 3] == end
    assert engine.statistics().drafted_tokens > 0


def test_the_limit_of_the_output_cuts_the_end_too() -> None:
    runner = FakeRunner()
    engine, receiver = Engine(runner), Receiver()
    engine.start()
    for limit in range(1, 12):
        request = GenerateRequest(f"{limit}", (1, 2, 3), limit, GREEDY, tenant=b"", thought=budget_of(4))
        receiver.submit(engine, request)
        output = receiver.tokens(f"{limit}")
        assert len(output) == limit
        assert output[4:9] == END[: max(limit - 4, 0)]
        assert receiver.finish_reason(f"{limit}") == "length"
    engine.stop()
    assert engine.statistics().generated_tokens == sum(range(1, 12))


def test_an_end_is_one_step_and_not_one_a_token() -> None:
    runner = FakeRunner()
    engine, receiver = Engine(runner), Receiver()
    engine.start()
    request = GenerateRequest("x", (1, 2, 3), 12, GREEDY, tenant=b"", thought=budget_of(4))
    receiver.submit(engine, request)
    receiver.tokens("x")
    engine.stop()
    assert runner.step_tokens == [3, 1, 1, 1, 1 + len(END), 1, 1]


def test_pages_of_an_end_are_found_but_not_counted_as_the_prompts() -> None:
    runner = FakeRunner()
    engine, receiver = Engine(runner), Receiver()
    engine.start()
    for name in ("first", "again"):  # the end begins where a page begins
        request = GenerateRequest(name, tuple(range(8)), 14, GREEDY, tenant=b"", thought=budget_of(5))
        receiver.submit(engine, request)
        receiver.tokens(name)
    engine.stop()
    assert receiver.tokens("first") == receiver.tokens("again")
    deltas = [delta for delta in receiver.events["again"] if isinstance(delta, TokenDelta)]
    assert sum(delta.cached_tokens for delta in deltas) == 4
    assert sum(runner.step_tokens) == 2 * (8 + 13) - 4 - 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thought": replace(budget_of(4), end=())}, "no tokens"),
        ({"thought": replace(budget_of(4), end=(1000,))}, "outside the vocabulary"),
        ({"thought": replace(budget_of(4), end_again=(-1,))}, "outside the vocabulary"),
        ({"search": BeamParams(2)}, "budget"),
        ({"resumed_token_ids": (5, 5, 5, 5, *END[:2])}, "within the written end"),
    ],
)
def test_what_no_engine_takes(changes: dict[str, Any], message: str) -> None:
    request = GenerateRequest("x", (1, 2), 40, GREEDY, tenant=b"", thought=budget_of(4))
    engine = Engine(FakeRunner())
    with pytest.raises(InvalidRequestError, match=message):
        Receiver().submit(engine, replace(request, **changes))
    engine.stop()


# --- A native model

CLOSING = "</think>"
SENTENCE = "\nEnough of it.\n"


class Native:
    """A native model under an engine; its thoughts are open, and their marks are text."""

    def __init__(self, folder: Path, constraints: Constraints, *, guess_tokens: int = 4) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.ids: list[int] = self.tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids
        runner = NativeRunner(
            str(folder), threads=1, kv_pages=256, max_sequences=16, max_step_tokens=128, max_context_tokens=512
        )
        self.constraints = constraints
        self.engine, self.receiver = Engine(runner, guess_tokens=guess_tokens), Receiver()
        self.engine.start()
        self.end = tuple(self.tokenizer.encode(SENTENCE + CLOSING, add_special_tokens=False).ids)

    def submit(self, request: GenerateRequest) -> None:
        constraint = None if request.grammar is None else self.constraints.compile(request.grammar)
        self.engine.submit(request, self.receiver.deliver, request.request_id, constraint)

    def close(self) -> None:
        self.engine.stop()


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}},
    "required": ["name"],
    "additionalProperties": False,
}
THOUGHT = Thought(FAMILIES[0], is_open=True, is_expected=True)
NATIVE: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "penalties": {"sampling": SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5)},
    "drawn": {"sampling": SamplingParams(temperature=1.0, top_p=0.9, top_k=50, presence_penalty=0.4, seed=11)},
    "scores": {"sampling": SamplingParams(temperature=0.8, seed=5, logprobs=3)},
    "schema": {
        "sampling": SamplingParams(temperature=0.9, seed=2),
        "grammar": answer_grammar(json_rule(SCHEMA), {}, THOUGHT),
        "stop_token_ids": frozenset({0, 2}),
    },
    "window": {"sampling": GREEDY, "window": ContextWindow(96, 8, 32), "max_new_tokens": 110},
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_model_goes_on_behind_it(engine_model: Path, engine_constraints: Constraints, name: str) -> None:
    """The thought is the free output's, and what follows is what the model gives to these tokens as its output."""
    options: dict[str, Any] = {"max_new_tokens": 80} | NATIVE[name]
    native = Native(engine_model, engine_constraints)
    receiver = native.receiver
    try:
        free = GenerateRequest("free", tuple(native.ids[50:117]), tenant=b"", **options)
        native.submit(free)
        thought = receiver.tokens("free")
        budgets = (1, 23, 29)  # 29: the end goes over the end of a page
        for tokens in budgets:
            budget = budget_of(tokens, end=native.end)
            native.submit(replace(free, request_id=f"{tokens}", thought=budget))
        for tokens in budgets:
            output = receiver.tokens(f"{tokens}")
            begun = (*thought[:tokens], *native.end)
            assert output[: len(begun)] == begun
            again = replace(free, request_id=f"{tokens} again", resumed_token_ids=begun)
            native.submit(again)
            assert begun + receiver.tokens(again.request_id) == output
            if free.sampling.logprobs is not None:
                assert len(scores_of(receiver, f"{tokens}").logprobs) == len(output)
                assert not scores_of(receiver, f"{tokens}").logprobs[tokens : len(begun)].any()
            if free.grammar is not None:
                text = native.tokenizer.decode(list(output[len(begun) :]))
                assert set(json.loads(text)) == {"name"}
    finally:
        native.close()
    assert native.engine.statistics().pages_used == 0


def test_the_tokens_as_a_prompt_give_the_same_answer(engine_model: Path, engine_constraints: Constraints) -> None:
    """Keys and values of the end are those of a prompt's tokens, also in the pages that the cache keeps."""
    native = Native(engine_model, engine_constraints)
    receiver = native.receiver
    try:
        prompt = tuple(native.ids[50:117])
        request = GenerateRequest("thought", prompt, 120, GREEDY, tenant=b"", thought=budget_of(30, end=native.end))
        native.submit(request)
        output = receiver.tokens("thought")
        begun = (*prompt, *output[: 30 + len(native.end)])
        rest = 120 - 30 - len(native.end)
        for uses_cache in (False, True):
            raw = GenerateRequest(f"{uses_cache}", begun, rest, GREEDY, tenant=b"", uses_cache=uses_cache)
            native.submit(raw)
            assert receiver.tokens(f"{uses_cache}") == output[30 + len(native.end) :]
        (cached,) = {delta.cached_tokens for delta in receiver.events["True"] if isinstance(delta, TokenDelta)} - {0}
        assert cached == (len(begun) - 1) // 32 * 32
    finally:
        native.close()
