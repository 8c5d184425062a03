import random
from collections import Counter

import pytest

from app.controller.policies import choose_lottery, choose_shortest_queue, lottery_order, shortest_queue_order

SPEEDS = [10.0, 20.0, 50.0, 120.0]


def chi_square(counts: Counter[int], probabilities: list[float]) -> float:
    total = sum(counts.values())
    return sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(probabilities))


def test_lottery_draws_with_probability_speed_over_sum() -> None:
    rng = random.Random(1)
    counts = Counter(choose_lottery(SPEEDS, rng) for _ in range(20_000))
    # Three degrees of freedom: above 16.27 in one of 1000 right ones.
    assert chi_square(counts, [speed / sum(SPEEDS) for speed in SPEEDS]) < 16.27


def test_lottery_order_draws_the_second_place_among_the_rest() -> None:
    rng = random.Random(2)
    seconds = Counter(order[1] for order in (lottery_order(SPEEDS, rng) for _ in range(20_000)) if order[0] == 3)
    assert chi_square(seconds, [speed / sum(SPEEDS[:3]) for speed in SPEEDS[:3]]) < 13.82  # two degrees
    assert all(sorted(lottery_order(SPEEDS, rng)) == [0, 1, 2, 3] for _ in range(100))


def test_shortest_queue_is_the_least_queue_over_speed() -> None:
    assert choose_shortest_queue([3, 4], [10.0, 20.0]) == 1
    assert choose_shortest_queue([1, 4], [10.0, 20.0]) == 0
    assert shortest_queue_order([2, 2, 2], [1.0, 3.0, 2.0]) == [1, 2, 0]


def test_idle_workers_are_taken_fastest_first() -> None:
    assert shortest_queue_order([0, 0, 0], [1.0, 3.0, 2.0]) == [1, 2, 0]


def test_shortest_queue_fills_in_proportion_to_speed() -> None:
    queues = [0, 0, 0, 0]
    for _ in range(2_000):
        queues[choose_shortest_queue(queues, SPEEDS)] += 1
    assert queues == [100, 200, 500, 1200]


@pytest.mark.parametrize("speeds", [[], [0.0], [1.0, -1.0], [float("nan")], [float("inf"), 1.0]])
def test_nothing_to_choose_from(speeds: list[float]) -> None:
    with pytest.raises(ValueError, match="speed"):
        choose_lottery(speeds, random.Random(0))


def test_speeds_and_queues_must_match() -> None:
    with pytest.raises(ValueError, match="each queue"):
        choose_shortest_queue([1], [1.0, 2.0])
