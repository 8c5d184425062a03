import pytest

from app.engine.expert_reads import ExpertReads
from app.engine.scheduling.pace import PromptPace


def test_the_budget_is_the_bound_at_first_and_small_steps_do_not_change_it() -> None:
    pace = PromptPace(256, 0.2)
    assert pace.chunk_tokens == 256
    pace.record(63, 10.0)
    assert pace.chunk_tokens == 256


def test_the_budget_is_what_fits_the_pause() -> None:
    pace = PromptPace(256, 0.2)
    pace.record(512, 512 / 400)
    assert pace.chunk_tokens == 80


def test_the_budget_has_a_lower_and_an_upper_bound() -> None:
    slow, fast = PromptPace(256, 0.2), PromptPace(256, 0.2)
    slow.record(64, 64.0)
    fast.record(512, 0.1)
    assert (slow.chunk_tokens, fast.chunk_tokens) == (8, 256)


def test_the_budget_follows_the_measured_steps() -> None:
    pace = PromptPace(256, 0.2)
    pace.record(100, 1.0)
    for _ in range(20):
        pace.record(100, 0.2)
    assert 95 <= pace.chunk_tokens <= 100


def test_without_a_pause_the_budget_is_the_bound() -> None:
    pace = PromptPace(4, None)
    pace.record(512, 100.0)
    assert pace.chunk_tokens == 4


def test_a_budget_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_chunk_tokens must be at least 1, not 0"):
        PromptPace(0, 0.2)


def test_a_step_without_outputs_has_a_bound_in_time_too() -> None:
    pace, slow = PromptPace(256, 0.2), PromptPace(256, 0.2)
    assert pace.chunk_tokens_alone is None
    pace.record(512, 512 / 400)
    assert pace.chunk_tokens_alone == 200
    slow.record(64, 64.0)
    assert slow.chunk_tokens_alone == 128
    assert PromptPace(4, None).chunk_tokens_alone is None


def test_after_a_pause_of_the_whole_machine_the_budget_recovers() -> None:
    pace = PromptPace(256, 0.2)
    pace.record(512, 0.5)
    pace.record(150, 60.0)  # the process was stopped
    while_it_decodes = [pace.chunk_tokens]
    for _ in range(30):
        pace.record(pace.chunk_tokens + 4, 0.01 + pace.chunk_tokens / 1000)
        while_it_decodes.append(pace.chunk_tokens)
    assert while_it_decodes[0] >= 60
    assert while_it_decodes[-1] >= 170


EXPERTS = ExpertReads(count=128, per_token=8, share=0.6)


def step_s(tokens: int, token_s: float, read_tokens: float) -> float:
    """A machine's step of the model with experts, which takes as long as the longer of multiplying and reading."""
    return token_s * max(tokens, read_tokens * EXPERTS.relative(tokens))


@pytest.mark.parametrize("read_tokens", [2.0, 6.0, 15.0])
@pytest.mark.parametrize("token_s", [0.01, 0.001])
def test_with_experts_a_chunk_takes_no_longer_than_the_pause_and_its_reads_are_learned(
    token_s: float, read_tokens: float
) -> None:
    pace = PromptPace(256, 0.2, EXPERTS)
    for _ in range(30):
        for tokens in (1, 4, 512):
            pace.record(tokens, step_s(tokens, token_s, read_tokens))
    chunk = pace.chunk_tokens
    assert chunk == 8 or step_s(chunk, token_s, read_tokens) <= 0.2 * 1.02
    assert chunk == 256 or step_s(chunk + 2, token_s, read_tokens) > 0.2 * 0.98
    dense = PromptPace(256, 0.2)
    dense.record(512, step_s(512, token_s, read_tokens))
    assert chunk <= dense.chunk_tokens


def test_chunks_that_are_decoded_beside_are_enough_to_find_the_pause() -> None:
    pace = PromptPace(256, 0.2, EXPERTS)
    pace.record(128, step_s(128, 0.008, 6.0))
    for _ in range(40):
        pace.record(pace.chunk_tokens, step_s(pace.chunk_tokens, 0.008, 6.0))
    assert step_s(pace.chunk_tokens, 0.008, 6.0) == pytest.approx(0.2, rel=0.15)


def test_where_nothing_decodes_each_expert_gets_sixteen_rows_at_least() -> None:
    slow, fast = PromptPace(256, 0.2, EXPERTS), PromptPace(256, 0.2, EXPERTS)
    slow.record(512, 10.0)
    fast.record(512, 0.1)
    assert slow.chunk_tokens_alone == 16 * 128 // 8
    assert fast.chunk_tokens_alone == 2560
