import random
from collections import Counter
from itertools import permutations

import pytest

from app.controller.policies import (
    choose_lottery,
    choose_shortest_queue,
    home_first,
    home_of,
    lottery_order,
    shortest_queue_order,
    spread,
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


def test_one_idle_worker_of_many_makes_no_home_overloaded() -> None:
    speeds = [10.0] * 20
    lengths = [0, *([3] * 18), 4]
    order = shortest_queue_order(lengths, speeds)
    assert home_first(order, 7, [0, *([3] * 18), 6], speeds)[:2] == [7, 0]  # 0.3, and 0.3 is that of all together
    assert home_first(order, 19, lengths, speeds) == order
    assert home_first(order, 7, lengths, speeds) == order  # 0.29


def test_nobody_has_a_home_without_workers() -> None:
    with pytest.raises(ValueError, match="empty"):
        home_of(OWNERS[0], [], [])


def test_the_whole_lottery_order_is_a_lottery_among_the_rest() -> None:
    """All 24 orders of four workers, against the product of the draws' probabilities."""
    rng = random.Random(5)
    orders = list(permutations(range(4)))
    probabilities = []
    for order in orders:
        left, probability = sum(SPEEDS), 1.0
        for index in order:
            probability *= SPEEDS[index] / left
            left -= SPEEDS[index]
        probabilities.append(probability)
    counts = Counter(orders.index(tuple(lottery_order(SPEEDS, rng))) for _ in range(40_000))
    assert chi_square(counts, probabilities) < 49.73  # 23 degrees of freedom; one in 1000 right ones is above


def test_without_unseen_requests_the_shortest_queue_is_first() -> None:
    rng = random.Random(6)
    order = shortest_queue_order([3, 1, 2], [1.0, 1.0, 1.0])
    assert all(spread(order, [3, 1, 2], [1.0, 1.0, 1.0], 0.0, rng) == [1, 2, 0] for _ in range(1_000))


def test_a_request_is_any_of_those_that_fill_the_workers_together() -> None:
    """Six requests bring queue_length / speed to 5: worker 0 gets two of them, worker 2 four, and worker 1 none."""
    rng = random.Random(7)
    lengths, speeds = [3, 9, 6], [1.0, 1.0, 2.0]
    order = shortest_queue_order(lengths, speeds)
    orders = [spread(order, lengths, speeds, 6.0, rng) for _ in range(20_000)]
    first = Counter(one[0] for one in orders)
    assert first[1] == 0
    # One in seven comes before the six others, and goes to the fastest of those with the least.
    assert chi_square(Counter({0: first[0], 1: first[2]}), [6 / 7 / 3, 1 / 7 + 6 / 7 * 2 / 3]) < 10.83
    assert all(one[1:] == [index for index in order if index != one[0]] for one in orders)


def test_routers_that_see_the_same_old_counts_do_not_all_send_to_the_same_worker() -> None:
    speeds = [1.0] * 10 + [2.0] * 10
    lengths = [index % 5 for index in range(20)]
    sent = list(lengths)
    order = shortest_queue_order(lengths, speeds)
    rng = random.Random(8)
    for _ in range(3_000):
        sent[spread(order, lengths, speeds, 2_999.0, rng)[0]] += 1
    waits = [length / speed for length, speed in zip(sent, speeds, strict=True)]
    assert max(waits) < 1.5 * min(waits)  # the policy alone would give all 3,000 to one of them
