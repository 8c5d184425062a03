from random import Random

import pytest

from app.engine.expert_reads import ExpertReads


@pytest.mark.parametrize(("count", "per_token"), [(128, 8), (32, 4), (8, 2), (4, 4)])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_distinct_experts_are_those_of_rows_that_choose_at_random(count: int, per_token: int, rows: int) -> None:
    random = Random(0)
    trials = 400
    found = [
        len({expert for _ in range(rows) for expert in random.sample(range(count), per_token)}) for _ in range(trials)
    ]
    spread = count / 2 / trials**0.5  # no count of `count` experts has a larger standard error
    assert ExpertReads(count, per_token, 0.5).distinct(rows) == pytest.approx(sum(found) / trials, abs=4 * spread)


def test_a_step_reads_more_with_each_row_until_it_reads_all() -> None:
    experts = ExpertReads(128, 8, 0.6)
    assert experts.relative(1) == pytest.approx(1.0)
    assert experts.relative(2) == pytest.approx(1 + 0.6 * (1 - 8 / 128))
    assert experts.relative(10_000) == pytest.approx(1 + 0.6 * 15)


@pytest.mark.parametrize("rows", [1, 3, 17, 100])
def test_the_rows_of_a_relative_read_are_its_inverse(rows: int) -> None:
    experts = ExpertReads(128, 8, 0.6)
    assert experts.rows_within(experts.relative(rows)) == pytest.approx(rows)


def test_reads_that_have_no_rows_or_any_number_of_them() -> None:
    experts = ExpertReads(128, 8, 0.6)
    assert experts.rows_within(0.1) == 0
    assert experts.rows_within(10.0) == experts.rows_within(99.0) == float("inf")
    assert ExpertReads(4, 4, 0.6).rows_within(1.0) == float("inf")


def test_tokens_for_rows_and_for_all_experts() -> None:
    experts = ExpertReads(128, 8, 0.6)
    assert (experts.tokens_for(64), ExpertReads(60, 4, 0.5).tokens_for(1)) == (1024, 15)
    tokens = experts.tokens_to_touch_all
    assert experts.distinct(tokens) >= 128 * (1 - 1e-4) > experts.distinct(tokens - 1)
    assert ExpertReads(4, 4, 0.6).tokens_to_touch_all == 1
