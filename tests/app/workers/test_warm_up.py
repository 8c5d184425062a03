from typing import Any

import pytest

from app.engine.engine import Engine
from app.engine.generation import Deliver
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.workers import warm_up as module
from app.workers.warm_up import warm_up
from tests.fakes import FakeRunner


def test_warm_up_measures_tokens_per_second_and_leaves_no_page_in_use() -> None:
    runner = FakeRunner()
    engine = Engine(runner)
    engine.start()
    try:
        warm = warm_up(engine, vocab_size=runner.vocab_size, prompt_tokens=20, new_tokens=5, concurrent=3)
        assert warm.speed > 0
        assert warm.prompt_tokens == 20
        assert 0 < warm.prompt_s < 25 / warm.speed
        assert 25 / warm.speed == pytest.approx(warm.prompt_s + 4 * warm.token_s)
        # The last of the new tokens is never fed back.
        assert sum(runner.step_tokens) == 3 * (20 + 4) + 3 * (20 // 3 + 4)
        assert engine.statistics().pages_used == 0
    finally:
        engine.stop()


def test_the_first_pass_alone_has_more_tokens_where_experts_need_them() -> None:
    runner = FakeRunner()
    engine = Engine(runner)
    engine.start()
    try:
        warm = warm_up(
            engine, vocab_size=runner.vocab_size, prompt_tokens=20, new_tokens=5, concurrent=1, first_prompt_tokens=31
        )
        assert warm.prompt_tokens == 20
        assert sum(runner.step_tokens) == (31 + 4) + 2 * (20 + 4)
    finally:
        engine.stop()


class Clock:
    """Time passes only while the engine below computes."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class GuessingEngine:
    """Makes the first token in 1 s, and then up to three tokens in each step of 0.5 s, as with guesses that hold."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def submit(self, request: GenerateRequest, deliver: Deliver, key: object) -> None:
        self.clock.now_s += 0.25
        deliver([(key, TokenDelta(()))])  # news of the prompt
        self.clock.now_s += 0.75
        deliver([(key, TokenDelta((1,)))])
        left = request.max_new_tokens - 1
        while left:
            made = min(3, left)
            left -= made
            self.clock.now_s += 0.5
            deliver([(key, TokenDelta((2,) * made, finish_reason=None if left else "length"))])

    def forget_draft_chances(self) -> None:
        """It makes no drafts."""


def test_a_step_s_time_is_not_divided_by_the_tokens_that_were_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    engine: Any = GuessingEngine(clock)
    warm = warm_up(engine, vocab_size=50, prompt_tokens=20, new_tokens=10, concurrent=1)
    assert warm.prompt_s == 1.0
    assert warm.token_s == 0.5
    assert warm.speed == 30 / 2.5
