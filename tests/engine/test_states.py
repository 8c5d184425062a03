"""The engine over a model with recurrent states: what is computed again, what is cached, and the same tokens always."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.sequence_states import KEPT_EVERY
from app.messages.failures import InvalidRequestError
from app.messages.requests import BeamParams, ContextWindow, ContrastiveParams, GenerateRequest, SamplingParams
from tests.engine.memory.test_engine_memory import folder_store
from tests.engine.pages.test_prefix_cache import Counter, ask
from tests.engine.searches.test_branches import answers, search_request
from tests.engine.test_engine import (
    Gate,
    Receiver,
    assert_no_state_is_held,
    make_request,
    spoil_free_states,
    state_pages_of,
)
from tests.fakes import FakeRunner
from tests.sizes import examples

PAGE = 4
GRID = PAGE * KEPT_EVERY
TEXT = tuple(Random(2).choices(range(1000), k=400))


def make_runner(**changes: Any) -> FakeRunner:
    options: dict[str, Any] = {"page_tokens": PAGE, "kv_pages": 256, "max_context_tokens": 400, "state_pages": 26}
    return FakeRunner(**(options | changes))


@contextmanager
def running(runner: FakeRunner, **options: Any) -> Iterator[Counter]:
    engine = Engine(runner, **options)
    spoil_free_states(engine)
    engine.start()
    try:
        yield Counter(engine, runner)
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0
    assert_no_state_is_held(engine)


def test_the_same_prompt_again_computes_only_its_last_partial_page() -> None:
    with running(make_runner()) as counter:
        assert counter.run(ask("first", TEXT[:50])) == 50 + 7
        assert counter.run(ask("again", TEXT[:50], seed=2)) == 2 + 7
        assert counter.run(ask("whole pages", TEXT[:100], 1)) == 100 - 48
        assert counter.run(ask("whole pages again", TEXT[:100], 1)) == 4


@pytest.mark.parametrize("length", range(36, 51))
def test_a_second_turn_computes_only_its_new_tokens(length: int) -> None:
    with running(make_runner()) as counter:
        first = ask("first", TEXT[:length], 7)
        counter.run(first)
        said = (*TEXT[:length], *counter.runner.expected_tokens(first), 3)
        assert counter.run(ask("second", said, 1)) == len(said) - (length + 6) // PAGE * PAGE


def test_another_text_goes_on_behind_the_last_cached_state() -> None:
    """Its pages of keys and values are cached further on."""
    with running(make_runner(max_step_tokens=400)) as counter:
        counter.run(ask("first", TEXT[:300], 1))
        for common in (295, 257, 256, 255, 130, 128, 100, 64, 63, 1):
            other = (*TEXT[:common], *range(10))
            assert counter.run(ask(f"{common}", other, 1)) == common + 10 - common // GRID * GRID
        assert counter.run(ask("tenant", TEXT[:300], 1, tenant=b"other")) == 300


def test_states_forgotten_are_computed_again_from_those_before() -> None:
    # One sequence at a time has two pages, so eight are cached: four of each text's grid, and its last one.
    with running(make_runner(max_step_tokens=400, max_sequences=1, state_pages=10)) as counter:
        assert counter.run(ask("first", TEXT[:270], 1)) == 270
        assert counter.run(ask("again", TEXT[:270], 1)) == 2
        assert counter.run(ask("other", TEXT[100:240], 1)) == 140
        assert counter.run(ask("again, still cached", TEXT[:270], 1)) == 2
        assert counter.run(ask("long", TEXT[50:320], 1)) == 270
        assert counter.run(ask("again, the last used", TEXT[:270], 1)) == 2
        for number in range(3):
            counter.run(ask(f"flood {number}", TEXT[number + 1 : number + 271], 1))
        assert counter.run(ask("again, forgotten", TEXT[:270], 1)) == 270


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    gate = Gate()
    runner = make_runner(before_step=gate, max_step_tokens=40)
    with running(runner) as counter:
        for number in range(5):
            counter.receiver.submit(counter.engine, ask(f"{number}", TEXT[:150], 5, seed=number))
        gate.open()
        for number in range(5):
            expected = runner.expected_tokens(ask(f"{number}", TEXT[:150], 5, seed=number))
            assert counter.receiver.tokens(f"{number}") == expected
        assert sum(runner.step_tokens) == 150 + 4 * (150 - 148) + 5 * 4


def test_prompts_that_begin_alike_share_what_has_a_state() -> None:
    gate = Gate()
    runner = make_runner(before_step=gate, max_step_tokens=40)
    prompts = [(*TEXT[:140], number, *TEXT[200 : 210 + number]) for number in range(5)]
    with running(runner) as counter:
        requests = [ask(f"{number}", prompt, 3) for number, prompt in enumerate(prompts)]
        for request in requests:
            counter.receiver.submit(counter.engine, request)
        gate.open()
        for request in requests:
            assert counter.receiver.tokens(request.request_id) == runner.expected_tokens(request)
        shared = 140 // GRID * GRID
        assert sum(runner.step_tokens) == shared + sum(len(prompt) - shared for prompt in prompts) + 5 * 2


def test_a_long_prompt_holds_few_state_pages() -> None:
    used = []
    runner = make_runner(max_step_tokens=100, max_sequences=1, state_pages=12)
    with running(runner, prefix_cache=False) as counter:
        pool = counter.engine._scheduler.states.pool  # type: ignore[union-attr]
        runner.before_step = lambda batch: used.append(pool.used_count)
        counter.run(ask("long", TEXT[:390], 9))
    # Chunks of 25 pages: the last page's and, behind the first chunk, that of the page before. Then the output: page 97
    # is partly filled, page 98 begins.
    assert used == [1, 2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 2]


def test_without_spare_pages_prompts_take_smaller_steps_and_all_goes_on() -> None:
    runner = make_runner(max_sequences=4, max_step_tokens=128, state_pages=10, vocab_size=1000)
    with running(runner, expected_output_tokens=1) as counter:
        requests = [make_request(f"{number}", 41 + 13 * number, 30, seed=number) for number in range(12)]
        for request in requests:
            counter.receiver.submit(counter.engine, request)
        for request in requests:
            assert counter.receiver.tokens(request.request_id) == runner.expected_tokens(request)


def test_a_preempted_sequence_goes_on_behind_its_last_full_page() -> None:
    runner = make_runner(kv_pages=24, max_context_tokens=64, max_sequences=3, state_pages=20)
    with running(runner, expected_output_tokens=1) as counter:
        requests = [make_request(f"{number}", 20, 40, seed=number) for number in range(3)]
        for request in requests:
            counter.receiver.submit(counter.engine, request)
        for request in requests:
            assert counter.receiver.tokens(request.request_id) == runner.expected_tokens(request)
        preemptions = counter.engine.statistics().preemptions
        assert preemptions > 0
        again = sum(runner.step_tokens) - 3 * 59
        # Its pages of keys and values may be gone, its state is not; what is there of both is not computed again.
        assert again < preemptions * 40


TURNS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 110),
        st.integers(1, 40),
        st.one_of(st.none(), st.sampled_from([BeamParams(3, answers=2), ContrastiveParams(3, 0.6)])),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    turns=TURNS,
    max_sequences=st.integers(3, 6),
    more=st.integers(0, 60),
    page_tokens=st.integers(1, 5),
    kv_pages=st.integers(0, 80),
    spare=st.sampled_from([2, 3, 4, 7, 60]),
    windows=st.sampled_from([(0,), (0, 9)]),
    guess_tokens=st.sampled_from([0, 3, 16, 64]),
    vocab_size=st.sampled_from([2, 3, 1000]),
    chunk_tokens=st.integers(1, 60),
)
def test_no_token_depends_on_others_chunks_guesses_forks_cache_or_preemption(
    turns: list[tuple[int, int, int, BeamParams | ContrastiveParams | None, int]],
    max_sequences: int,
    more: int,
    page_tokens: int,
    kv_pages: int,
    spare: int,
    windows: tuple[int, ...],
    guess_tokens: int,
    vocab_size: int,
    chunk_tokens: int,
) -> None:
    """Prompts are beginnings of three texts. Every guess that there is is computed, whatever it costs."""
    runner = make_runner(
        vocab_size=vocab_size,
        page_tokens=page_tokens,
        max_sequences=max_sequences,
        max_step_tokens=max_sequences + more,
        kv_pages=len(windows) * 3 * (-(-151 // page_tokens) + 1) + kv_pages,
        max_context_tokens=152,
        state_pages=state_pages_of(max_sequences, spare),
        group_windows=windows,
    )
    runner.search_alphabet = min(50, vocab_size)
    engine = Engine(runner, prompt_chunk_tokens=chunk_tokens, expected_output_tokens=2, guess_tokens=guess_tokens)
    spoil_free_states(engine)
    if engine._speculation is not None:
        engine._speculation._paying = lambda chances, rows, spent_s=None: len(chances)  # type: ignore[method-assign]
    texts = [TEXT[:120], TEXT[:30] * 4, (*TEXT[:70], *TEXT[:50])]
    receiver = Receiver()
    leaving: dict[str, int] = {}

    def leave(batch: object) -> None:
        for name, at_step in leaving.items():
            if at_step == runner.steps:
                engine.abort(name)

    runner.before_step = leave
    requests = []
    for number, (text, length, new_tokens, search, at_step) in enumerate(turns):
        name, prompt = f"{number}", tuple(token % vocab_size for token in texts[text][:length])
        if at_step % 4 == 0:
            leaving[name] = at_step
        if search is None or vocab_size < 3:
            sampling = SamplingParams(temperature=float(number % 2), seed=number)
            requests.append(
                GenerateRequest(name, prompt, new_tokens, sampling, frozenset({1} if text else ()), tenant=b"")
            )
        else:
            requests.append(GenerateRequest(name, prompt, min(new_tokens, 15), search=search, tenant=b""))
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        if request.request_id in leaving:
            continue
        if request.search is None:
            assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
        else:
            assert answers(receiver, request.request_id) == runner.expected_answers(request)
    engine.stop()
    assert engine.statistics().pages_used == 0
    assert_no_state_is_held(engine)


def test_guesses_are_right_and_wrong_over_the_end_of_pages() -> None:
    runner = make_runner(vocab_size=2, max_sequences=2, max_step_tokens=64)
    with running(runner, guess_tokens=24) as counter:
        counter.engine._speculation._paying = lambda chances, rows, spent_s=None: len(chances)  # type: ignore[method-assign, union-attr]
        for number in range(6):
            prompt = tuple(token % 2 for token in TEXT[: 10 + number])
            counter.run(GenerateRequest(f"{number}", prompt, 200, SamplingParams(temperature=0.0), tenant=b""))
        counts = counter.engine.statistics()
        assert counts.accepted_tokens > 100
        assert counts.drafted_tokens - counts.accepted_tokens > 100


def test_beams_share_their_prompt_and_end() -> None:
    runner = make_runner()
    runner.search_alphabet = 50
    with running(runner) as counter:
        for name in ("first", "again"):
            request = search_request(name, 70, 30, BeamParams(4, answers=3))
            counter.receiver.submit(counter.engine, request)
            assert answers(counter.receiver, name) == runner.expected_answers(request)


def test_what_such_a_model_cannot_do_is_refused(tmp_path: Path) -> None:
    with running(make_runner()) as counter:
        window = ContextWindow(tokens=64, keep_tokens=4, discard_tokens=8)
        request = GenerateRequest("endless", (1, 2, 3), 500, SamplingParams(), tenant=b"", window=window)
        with pytest.raises(InvalidRequestError, match=r"recurrent states, .* can't be shifted"):
            counter.receiver.submit(counter.engine, request)
    with (
        folder_store(tmp_path) as store,
        pytest.raises(ValueError, match=r"page_store: .* recurrent states .* can't be saved"),
    ):
        Engine(make_runner(), page_store=store)
    with pytest.raises(ValueError, match=r"state_pages \(17\) must be at least 18 for 8 sequences"):
        SchedulerLimits(8, 8, 64, 4, 16, state_pages=17)
