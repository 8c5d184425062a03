"""Requests of batches beside others in the engine: whose turn it is, interrupted steps, the same tokens as alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.intake import Intake
from app.engine.model_runner import Batch
from app.engine.pages.page_groups import PageGroups
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.sequence import SequenceState
from app.engine.speculative.speculation import Speculation
from app.messages.failures import InvalidRequestError
from app.messages.memory import MemoryGrant
from app.messages.requests import BeamParams, ContextWindow, GenerateRequest, Priority
from tests.engine.test_engine import (
    SPARE_STATE_PAGES,
    WINDOWS,
    Gate,
    Receiver,
    assert_no_state_is_held,
    make_request,
    spoil_free_states,
    state_pages_of,
)
from tests.fakes import FakeRunner
from tests.sizes import examples


def of_batch(request: GenerateRequest) -> GenerateRequest:
    return replace(request, priority=Priority.BATCH)


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(runner: FakeRunner, **options: Any) -> Engine:
        engines.append(Engine(runner, **options))
        if isinstance(runner.before_step, Gate):
            runner.before_step.engine = engines[-1]
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 9), st.integers(0, 40), st.booleans()),
        min_size=1,
        max_size=10,
    ),
    st.integers(3, 6),
    st.integers(0, 20),
    st.integers(1, 6),
    st.integers(0, 20),
    WINDOWS,
    SPARE_STATE_PAGES,
    st.sampled_from([0, 3]),
)
def test_the_same_tokens_as_alone_whenever_others_come(
    plans: list[tuple[int, int, int, int, bool]],
    max_sequences: int,
    more: int,
    page_tokens: int,
    pages: int,
    windows: tuple[int, ...],
    spare: int | None,
    guess_tokens: int,
) -> None:
    runner = FakeRunner(
        max_sequences=max_sequences,
        max_step_tokens=max_sequences + more,
        page_tokens=page_tokens,
        kv_pages=3 * PageGroups(windows, page_tokens).pages(-(-90 // page_tokens)) + pages,
        max_context_tokens=91,
        group_windows=windows,
        state_pages=state_pages_of(max_sequences, spare),
    )
    engine = Engine(runner, prompt_chunk_tokens=1 + more // 2, expected_output_tokens=2, guess_tokens=guess_tokens)
    spoil_free_states(engine)
    receiver = Receiver()
    requests = [make_request(f"{number}", p, n, seed=seed) for number, (p, n, seed, _, _) in enumerate(plans)]
    requests.append(replace(make_request("beams", 12, 10), search=BeamParams(3)))
    batches = {f"{number}" for number, plan in enumerate(plans) if plan[-1]} | {"beams"}
    coming = {f"{number}": plan[3] for number, plan in enumerate(plans)}

    def submit(name: str) -> None:
        request = requests[-1] if name == "beams" else requests[int(name)]
        receiver.submit(engine, of_batch(request) if name in batches else request)

    def submit_once(name: str) -> None:  # this thread and the engine's may both see it
        if coming.pop(name, None) is not None:
            submit(name)

    def come(batch: Batch) -> None:  # within a step, which is interrupted if it is one of batches
        assert (batch.interrupt is not None) == is_of_batches(batch)
        for name, at_step in list(coming.items()):
            if at_step <= runner.steps:
                submit_once(name)

    def is_of_batches(batch: Batch) -> bool:
        by_slot = {sequence.slot: sequence.is_batch for sequence in engine._scheduler.running}
        kinds = {by_slot[slot] for slot in batch.slots.tolist()}
        assert len(kinds) == 1
        return kinds.pop()

    runner.before_step = come
    submit("beams")
    engine.start()
    receiver.tokens("beams")
    for name in list(coming):  # those that no step has waited for
        submit_once(name)
    for request in requests[:-1]:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request), request.request_id
    assert receiver.tokens("beams") == runner.expected_answers(requests[-1])[0][0]
    engine.stop()
    assert engine.statistics().pages_used == 0
    assert_no_state_is_held(engine)


def test_speculation_is_told_which_batches_stand_still(
    start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[SequenceState]] = []
    monkeypatch.setattr(Speculation, "pause", lambda _, sequences: told.append(list(sequences)))
    gate = Gate()
    runner = FakeRunner(before_step=gate)
    engine, receiver = start(runner, guess_tokens=1), Receiver()
    receiver.submit(engine, of_batch(make_request("line", 20, 10, seed=1)))
    gate.wait()
    receiver.submit(engine, make_request("chat", 5, 3, seed=2))
    gate.open()
    for name in ("line", "chat"):
        receiver.tokens(name)
    engine.stop()
    still = [sequence for sequences in told for sequence in sequences]
    assert still
    assert all(sequence.is_batch for sequence in still)
    assert not told[-1]


def test_a_request_interrupts_a_step_of_batches_and_is_next(start: Callable[..., Engine]) -> None:
    gate = Gate()
    runner = FakeRunner(before_step=gate)
    engine, receiver = start(runner), Receiver()
    line, chat = of_batch(make_request("line", 20, 10, seed=1)), make_request("chat", 5, 3, seed=2)
    receiver.submit(engine, line)
    gate.wait()
    gate.let_run(4)
    had = len(receiver.events["line"])
    receiver.submit(engine, chat)  # the engine stands before the line's next token
    gate.let_run(1)
    assert engine.statistics().interruptions == 1
    gate.let_run(3)
    assert receiver.tokens("chat") == runner.expected_tokens(chat)
    assert len(receiver.events["line"]) == had
    receiver.submit(engine, of_batch(make_request("other", 5, 3)))  # interrupts nobody
    gate.open()
    assert receiver.tokens("line") == runner.expected_tokens(line)
    receiver.tokens("other")
    statistics = engine.statistics()
    assert (statistics.interruptions, statistics.begun, statistics.preemptions) == (1, 1, 0)


def test_steps_of_batches_are_short_after_an_interruption(start: Callable[..., Engine]) -> None:
    """What an interrupted step has computed is lost: with long ones a batch would get nowhere beside many chats."""
    runner, receiver = FakeRunner(max_context_tokens=256, kv_pages=256), Receiver()
    engine = start(runner, prompt_chunk_tokens=4)
    tokens: list[int] = []

    def come(batch: Batch) -> None:
        if batch.interrupt is not None:
            tokens.append(len(batch.token_ids))
            if len(tokens) == 2:
                receiver.submit(engine, make_request("chat", 5, 3))

    runner.before_step = come
    receiver.submit(engine, of_batch(make_request("line", 200, 3)))
    receiver.tokens("line")
    assert tokens[:7] == [32, 32, 4, 8, 16, 32, 32]


def test_requests_of_batches_that_wait_are_not_counted_as_waiting(start: Callable[..., Engine]) -> None:
    gate = Gate()
    engine, receiver = start(FakeRunner(before_step=gate, max_sequences=1, max_step_tokens=8)), Receiver()
    for name in ("chat", "later chat"):
        receiver.submit(engine, make_request(name, 5, 3))
    receiver.submit(engine, of_batch(make_request("line", 5, 3)))
    gate.wait()
    gate.let_run(2)
    assert (engine.statistics().running, engine.statistics().waiting) == (1, 1)
    gate.open()
    assert len(receiver.tokens("line")) == 3


def test_a_batch_has_no_context_window(start: Callable[..., Engine]) -> None:
    engine, receiver = start(FakeRunner(max_context_tokens=32, kv_pages=8)), Receiver()
    window = ContextWindow(tokens=16, keep_tokens=4, discard_tokens=4, is_required=False)
    request = replace(of_batch(make_request("line", 10, 100)), window=window)
    receiver.submit(engine, request)
    assert len(receiver.tokens("line")) == 22
    assert receiver.finish_reason("line") == "length"
    with pytest.raises(InvalidRequestError, match="on_overflow: a batch's context"):
        receiver.submit(engine, replace(request, window=replace(window, is_required=True)))


@pytest.mark.parametrize("priority", Priority)
def test_pages_of_batches_are_neither_loaded_nor_saved(priority: Priority) -> None:
    runner = FakeRunner()
    limits = SchedulerLimits(step_tokens=32, max_sequences=8, max_context_tokens=128, page_tokens=4, page_count=64)
    intake = Intake(runner, limits, cache_secret=bytes(32), fingerprint=bytes(16), guesses=False, drafts=False)
    grant = MemoryGrant("0" * 32, bytes(32), bytes(32), bytes(32), bytes(16), bytes(16), shared_tokens=0, save=True)
    request = replace(make_request("r", 9, 3), memory=grant, priority=priority)
    generation, _ = intake.make(request, lambda events: None, None, None)
    assert generation.sequence.grant == (grant if priority is Priority.NORMAL else None)
