import pytest

from app.engine.engine import Engine
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
