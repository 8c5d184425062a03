"""The two ways to choose a worker, as pure functions of speeds and queue lengths; no Ray, no clock, no state.

Routing needs an order and not only a first choice: if the first worker has no place, the next one gets the request.
"""

import random
from collections.abc import Sequence


def choose_lottery(speeds: Sequence[float], rng: random.Random) -> int:
    """Draws an index with probability speed / sum(speed).

    Raises ValueError if there is none, or a speed is not a positive number.
    """
    total = sum(speeds)
    if not speeds or not min(speeds) > 0 or total == float("inf"):
        raise ValueError(f"speeds must be positive numbers: {list(speeds)}")
    ticket = rng.random() * total
    for index, speed in enumerate(speeds):
        ticket -= speed
        if ticket < 0:
            return index
    return len(speeds) - 1  # rounding: the ticket was within an ulp of the total


def lottery_order(speeds: Sequence[float], rng: random.Random) -> list[int]:
    """A weighted permutation: a lottery for the first place, then among the rest for the second, ..."""
    left = list(range(len(speeds)))
    return [left.pop(choose_lottery([speeds[i] for i in left], rng)) for _ in range(len(speeds))]


def choose_shortest_queue(queue_lengths: Sequence[int], speeds: Sequence[float]) -> int:
    """The index of the least queue_length / speed; of equals (all are idle) the fastest, then the first.

    Raises ValueError if there is none, or a speed is not a positive number.
    """
    return shortest_queue_order(queue_lengths, speeds)[0]


def shortest_queue_order(queue_lengths: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """All indices, in the order in which `choose_shortest_queue` prefers them."""
    if not speeds or not min(speeds) > 0 or len(speeds) != len(queue_lengths):
        raise ValueError(f"need one positive speed for each queue: {list(speeds)}, {list(queue_lengths)}")
    return sorted(range(len(speeds)), key=lambda i: (queue_lengths[i] / speeds[i], -speeds[i], i))
