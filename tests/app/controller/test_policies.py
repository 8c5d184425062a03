import random
from collections import Counter

import pytest

from app.controller.policies import (
    choose_lottery,
    choose_shortest_queue,
    home_first,
    home_of,
    lottery_order,
    shortest_queue_order,
)

SPEEDS = [10.0, 20.0, 50.0, 120.0]
WORKERS = ["a1", "b2", "c3", "d4"]
OWNERS = [f"{number:032x}" for number in range(4_000)]


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


def homes(worker_ids: list[str], speeds: list[float]) -> list[str]:
    return [worker_ids[home_of(owner, worker_ids, speeds)] for owner in OWNERS]


def test_owners_spread_over_their_homes_in_proportion_to_speed() -> None:
    counts = Counter(WORKERS.index(home) for home in homes(WORKERS, SPEEDS))
    assert chi_square(counts, [speed / sum(SPEEDS) for speed in SPEEDS]) < 16.27


def test_a_home_does_not_depend_on_the_order_of_the_workers() -> None:
    assert homes(WORKERS, SPEEDS) == homes(WORKERS[::-1], SPEEDS[::-1])


@pytest.mark.parametrize("gone", range(len(WORKERS)))
def test_a_worker_that_goes_or_comes_moves_only_its_own_owners(gone: int) -> None:
    with_all = homes(WORKERS, SPEEDS)
    without = homes(WORKERS[:gone] + WORKERS[gone + 1 :], SPEEDS[:gone] + SPEEDS[gone + 1 :])
    moved = {before for before, after in zip(with_all, without, strict=True) if before != after}
    assert moved == {WORKERS[gone]}
    taken = Counter(after for before, after in zip(with_all, without, strict=True) if before != after)
    assert len(taken) == len(WORKERS) - 1  # all others take some of them


def test_an_order_begins_with_the_home_until_it_is_overloaded() -> None:
    speeds = [10.0, 20.0, 10.0]
    assert home_first([1, 2, 0], 0, [0, 0, 0], speeds) == [0, 1, 2]
    assert home_first([1, 2, 0], 0, [3, 4, 2], speeds) == [0, 1, 2]  # 0.3 is 1.5 times 0.2
    assert home_first([1, 2, 0], 0, [4, 6, 4], speeds) == [0, 1, 2]
    assert home_first([1, 2, 0], 0, [4, 5, 2], speeds) == [1, 2, 0]
    assert home_first([1, 2, 0], 0, [1, 0, 2], speeds) == [1, 2, 0]  # another one is idle


def test_nobody_has_a_home_without_workers() -> None:
    with pytest.raises(ValueError, match="empty"):
        home_of(OWNERS[0], [], [])
