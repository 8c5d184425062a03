from random import Random

import pytest

from app.engine.engine import Engine
from app.engine.speculative.speculation import Speculation
from app.messages.requests import GenerateRequest, SamplingParams
from tests.engine.test_engine import Receiver
from tests.fakes import FakeRunner


def test_guesses_are_made_as_long_as_they_give_more_tokens_a_second() -> None:
    """If rows are cheap up to four: three likely guesses beside one request, and none beside eight."""
    speculation = Speculation(16)
    for number in range(300):
        rows = (1, 2, 3, 4, 6, 8, 12)[number % 7]
        speculation._cost.record(rows, 1 + 0.05 * min(rows - 1, 3) + 0.3 * max(rows - 4, 0))
    sure, doubtful = [0.95**count for count in range(1, 17)], [0.05**count for count in range(1, 17)]
    assert speculation._paying(sure, 1) == 3
    assert speculation._paying([0.5, 0.25, 0.1], 1) == 3
    assert speculation._paying(doubtful, 1) == 0
    assert speculation._paying([0.6, 0.5], 8) == 0
    assert speculation._paying([], 1) == 0


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("vocab_size", [2, 3, 1000])
def test_outputs_are_the_same_with_guesses(seed: int | None, vocab_size: int) -> None:
    """A fake model with two tokens repeats itself often enough for guesses to be right."""
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
            tenant=b"",
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
    assert 0 <= counts.accepted_tokens <= counts.drafted_tokens
    assert counts.generated_tokens == sum(len(receiver.tokens(request.request_id)) for request in requests)
    if vocab_size == 2:
        assert counts.accepted_tokens > 0
        assert runner.steps < counts.generated_tokens


def test_guesses_never_preempt() -> None:
    runner = FakeRunner(vocab_size=2, kv_pages=16, max_sequences=4, max_context_tokens=64)
    engine, receiver = Engine(runner, guess_tokens=8, expected_output_tokens=1), Receiver()
    requests = [
        GenerateRequest(f"{number}", (number % 2,) * 8, 40, SamplingParams(seed=number), tenant=b"")
        for number in range(4)
    ]
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    engine.stop()
    assert engine.statistics().pages_used == 0
