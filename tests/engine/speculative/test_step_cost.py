from random import Random

import pytest

from app.engine.expert_reads import ExpertReads
from app.engine.speculative.step_cost import StepCost


def bent(rows: int) -> float:
    """Rows are nearly free up to four, as measured where a kernel waits for weights."""
    return 0.01 * (1 + 0.05 * min(rows - 1, 3) + 0.3 * max(rows - 4, 0))


def test_the_prior_has_cheap_rows_and_then_expensive_ones() -> None:
    cost = StepCost()
    assert cost.seconds(1) == pytest.approx(1)
    steps = [cost.seconds(rows + 1) - cost.seconds(rows) for rows in range(1, 40)]
    assert steps[:3] == pytest.approx([0.1] * 3)
    assert steps[3:] == pytest.approx([0.2] * 36)


def test_with_experts_a_row_costs_the_experts_that_it_reads() -> None:
    experts = ExpertReads(count=128, per_token=8, share=0.6)
    cost, dense = StepCost(experts), StepCost()
    for rows in (2, 4, 8):
        assert cost.seconds(rows) == pytest.approx(experts.relative(rows))
        assert cost.seconds(rows) > 1.2 * dense.seconds(rows)
    assert cost.seconds(256) == dense.seconds(256)  # there multiplying takes longer
    for _ in range(200):
        cost.record(1, 0.01)
        cost.record(4, 0.011)
    # Each measurement moves the point by 0.15, and each step by 0.003 back to the prior.
    left = 2 * 0.003 / 0.15 * (experts.relative(4) - 1.1)
    assert cost.seconds(4) / cost.seconds(1) == pytest.approx(1.1, abs=left)


@pytest.mark.parametrize("rows", [1, 3, 5, 600])
def test_one_step_scales_the_prior(rows: int) -> None:
    cost, before = StepCost(), StepCost()
    cost.record(rows, 0.5)
    assert cost.seconds(rows) == pytest.approx(0.5)
    assert cost.seconds(2) / cost.seconds(1) == pytest.approx(before.seconds(2) / before.seconds(1))


def test_a_bend_is_learned() -> None:
    cost, random = StepCost(), Random(0)
    for _ in range(400):
        rows = random.choice([1, 2, 3, 4, 5, 6, 7, 9, 11, 16])
        cost.record(rows, bent(rows) * random.uniform(0.95, 1.05))
    for rows in (1, 2, 3, 4, 6, 8, 12, 16):
        assert cost.seconds(rows) == pytest.approx(bent(rows), rel=0.1), rows


def test_one_stall_changes_little() -> None:
    cost = StepCost()
    for number in range(100):
        cost.record(1 + number % 3, 0.01)
    before = cost.seconds(3) / cost.seconds(1)
    cost.record(3, 5.0)
    assert cost.seconds(3) / cost.seconds(1) < before * 1.25


def test_rows_that_were_slow_once_are_tried_again_some_time() -> None:
    cost = StepCost()
    for number in range(60):
        cost.record((1, 4)[number % 2], (0.01, 0.08)[number % 2])
    dear = cost.seconds(4) / cost.seconds(1)
    assert dear > 6
    for _ in range(1000):
        cost.record(1, 0.03)  # longer texts: steps take longer, and no guess is made
    assert cost.seconds(1) == pytest.approx(0.03, rel=0.01)
    assert cost.seconds(4) / cost.seconds(1) < 1.7


def test_a_machine_that_slows_down_makes_no_rows_cheap() -> None:
    """Nor does one that speeds up again: steps of one row tell what others take now."""
    cost = StepCost()
    for number in range(200):
        cost.record((1, 4)[number % 2], (0.010, 0.012)[number % 2])
    for slowness in (1.3, 1.0):
        for _ in range(60):
            cost.record(1, 0.010 * slowness)
            assert cost.seconds(2) >= cost.seconds(1)
            assert cost.seconds(4) / cost.seconds(1) == pytest.approx(1.2, rel=0.05)
        assert cost.seconds(4) == pytest.approx(0.012 * slowness, rel=0.05)


def test_more_rows_never_seem_to_take_less_time() -> None:
    cost, random = StepCost(), Random(1)
    for _ in range(300):
        cost.record(random.randrange(1, 20), random.uniform(0.005, 0.02))
        times = [cost.seconds(rows) for rows in range(1, 30)]
        assert times == sorted(times)


def test_rows_that_got_dearer_in_a_row_are_known_by_a_step_of_fewer() -> None:
    cost = StepCost()
    for number in range(100):
        cost.record((1, 4)[number % 2], (0.010, 0.012)[number % 2])
    for _ in range(100):
        cost.record(4, 0.024)
    before = cost.seconds(1)
    cost.record(1, 0.010)
    assert cost.seconds(1) == pytest.approx((before + 0.010) / 2, rel=0.01)
    assert cost.seconds(4) == pytest.approx(0.024, rel=0.02)
