from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.speculation import NgramDrafter, StepCost
from app.engine.types import GenerateRequest, SamplingParams
from tests.engine.test_engine import Receiver
from tests.fakes import FakeRunner


def test_what_followed_the_last_tokens_before_is_guessed() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
    drafter = NgramDrafter(tokens)
    assert drafter.look_up(9) == [4, 5, 6, 9, 1, 2, 3, 4, 5]
    assert drafter.look_up(2) == [4, 5]
    tokens += [4, 7]  # 4, 7 is new
    assert drafter.look_up(8) == []
    tokens += [2, 3]
    assert drafter.look_up(2) == [4, 7]  # two tokens are enough, and the latest place counts
    tokens += [4, 5, 6, 9]
    assert drafter.look_up(3) == [1, 2, 3]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 9))
def test_guesses_are_always_a_part_of_the_text_after_its_end(text: list[int], most: int) -> None:
    tokens: list[int] = []
    drafter = NgramDrafter(tokens)
    for token in text:
        tokens.append(token)
        guesses = drafter.look_up(most)
        assert len(guesses) <= most
        if guesses:
            continued = [*tokens, *guesses]
            pieces = [continued[i : i + 2 + most] for i in range(len(tokens) - 2)]
            assert [*tokens[-2:], *guesses] in pieces


def test_it_begins_anew_when_tokens_were_taken_out() -> None:
    tokens = [1, 2, 3, 4, 1, 2]
    drafter = NgramDrafter(tokens)
    assert drafter.look_up(1) == [3]
    del tokens[:4]
    drafter.forget()
    assert drafter.look_up(1) == []


def test_guesses_stop_where_they_are_wrong_and_come_back_where_they_are_right() -> None:
    tokens = [1, 2, 3] * 10
    drafter = NgramDrafter(tokens)
    counts = []
    for right in [False] * 30 + [True] * 30:
        guesses = drafter.look_up(6)
        counts.append(drafter.guesses_that_pay(0.2))
        drafter.learn([guesses[0] if right else 999])  # none of them is computed, they are looked at all the same
    assert counts[10:30] == [0] * 20
    assert counts[-1] == 6


def test_a_row_pays_where_rows_are_cheap() -> None:
    assert StepCost().break_even(1) == pytest.approx(StepCost.PRIOR_SLOPE)
    cheap, dear = StepCost(), StepCost()
    for number in range(100):
        rows = 1 + number % 4
        cheap.record(rows, 0.1 + 0.001 * rows)
        dear.record(rows, 0.1 * rows)
    assert cheap.break_even(1) < 0.1
    assert dear.break_even(1) > 0.8
    assert cheap.break_even(8) < dear.break_even(8) <= 1


def test_one_stall_does_not_turn_guesses_off() -> None:
    cost = StepCost()
    for number in range(100):
        cost.record(1 + number % 3, 0.01)
    before = cost.break_even(1)
    cost.record(3, 5.0)
    assert cost.break_even(1) < before + 0.25


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("vocab_size", [2, 3, 1000])
def test_texts_are_the_same_with_guesses(seed: int | None, vocab_size: int) -> None:
    """A fake model of two words repeats itself enough for guesses to be right."""
    runner = FakeRunner(vocab_size=vocab_size, kv_pages=96, max_sequences=4)
    engine, receiver = Engine(runner, guess_tokens=6), Receiver()
    sampling = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed)
    requests = [
        GenerateRequest(
            f"{number}",
            tuple(token % vocab_size for token in Random(number).choices(range(1000), k=10 + number)),
            60 + number,
            sampling,
            frozenset({7}),
        )
        for number in range(4)
    ]
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    engine.stop()
    counts = engine.statistics()
    assert counts.pages_used == 0
    assert 0 <= counts.right_guesses <= counts.guessed_tokens
    assert counts.generated_tokens == sum(len(receiver.tokens(request.request_id)) for request in requests)
    if vocab_size == 2:
        assert counts.right_guesses > 0
        assert runner.steps < counts.generated_tokens


def test_a_guess_never_takes_a_page_from_anybody() -> None:
    runner = FakeRunner(vocab_size=2, kv_pages=16, max_sequences=4, max_context_tokens=64)
    engine, receiver = Engine(runner, guess_tokens=8, expected_output_tokens=1), Receiver()
    requests = [GenerateRequest(f"{number}", (number % 2,) * 8, 40, SamplingParams(seed=number)) for number in range(4)]
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    engine.stop()
    assert engine.statistics().pages_used == 0
