"""The two routing policies, as pure functions of speeds and queue lengths; no Ray, no clock, no state.

Policies return an order, not only a first choice: if the first worker is full, the next one gets the request. Users
with saved pages have a home: a worker that gets their requests first unless it is overloaded.
"""

import math
import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

_OVERLOAD: Final = 1.5
"""A home is overloaded if its queue_length / speed exceeds this many times the lowest of all workers and also this many
times that of all workers together. The lowest alone says little among many workers: one is nearly always idle."""


def choose_lottery(speeds: Sequence[float], rng: random.Random) -> int:
    """Draws an index with probability speed / sum(speed).

    Raises ValueError if there is none, or a speed is not a positive number.
    """
    _check(speeds)
    ticket = rng.random() * sum(speeds)
    for index, speed in enumerate(speeds):
        ticket -= speed
        if ticket < 0:
            return index
    return len(speeds) - 1  # rounding: the ticket was within an ulp of the total


def lottery_order(speeds: Sequence[float], rng: random.Random) -> list[int]:
    """Returns a weighted random permutation: one lottery for the first place, then among the rest, and so on.

    Each index draws an exponentially distributed time with rate speed. Index i is first with probability
    speed / sum(speed), and the same holds among the rest, because the distribution is memoryless. So one sort suffices.
    Raises ValueError as `choose_lottery` does.
    """
    _check(speeds)
    times = [-math.log(1.0 - rng.random()) / speed for speed in speeds]
    return sorted(range(len(speeds)), key=times.__getitem__)


def choose_shortest_queue(queue_lengths: Sequence[int], speeds: Sequence[float]) -> int:
    """Returns the index with the lowest queue_length / speed; among equals (all idle) the fastest, then the first.

    Raises ValueError if there is none, or a speed is not a positive number.
    """
    return shortest_queue_order(queue_lengths, speeds)[0]


def shortest_queue_order(queue_lengths: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """Returns all indices in the order in which `choose_shortest_queue` prefers them."""
    if not speeds or not min(speeds) > 0 or len(speeds) != len(queue_lengths):
        raise ValueError(f"need one positive speed for each queue: {list(speeds)}, {list(queue_lengths)}")
    waits = [length / speed for length, speed in zip(queue_lengths, speeds, strict=True)]
    return [index for _, _, index in sorted(zip(waits, [-speed for speed in speeds], range(len(speeds)), strict=True))]


def spread(
    order: Sequence[int], queue_lengths: Sequence[int], speeds: Sequence[float], unseen: float, rng: random.Random
) -> list[int]:
    """Randomizes the order of `shortest_queue_order`, for a router that does not see all requests.

    unseen: how many requests other routers send to workers between two reports. If all routers took the shortest queue
    of the same report, all these requests would go to the same few workers. Here `unseen` requests and this one fill
    the workers in the policy's order, and a worker is drawn in proportion to its share of them. If unseen is 0, the
    order stays.
    """
    if rng.random() * (unseen + 1.0) < 1.0:
        return list(order)
    below: list[int] = []
    length, speed = 0.0, 0.0
    for index in order:
        if below and queue_lengths[index] / speeds[index] * speed - length >= unseen:
            break
        below.append(index)
        length += queue_lengths[index]
        speed += speeds[index]
    level = (unseen + length) / speed  # every worker's queue_length / speed once these requests are there
    (first,) = rng.choices(below, [max(0.0, level * speeds[i] - queue_lengths[i]) for i in below])
    return _with_first(order, first)


def home_of(owner: str, worker_ids: Sequence[str], speeds: Sequence[float]) -> int:
    """Returns the index of the owner's home worker, by rendezvous hashing weighted by speed.

    All routers agree. Owners spread in proportion to speed; when a worker goes or comes, only its own owners move.
    Raises ValueError if there is no worker.
    """
    return max(range(len(worker_ids)), key=lambda i: (_weight(owner, worker_ids[i], speeds[i]), worker_ids[i]))


def home_first(order: Sequence[int], home: int, queue_lengths: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """Moves the home to the front of a policy's order, unless it is overloaded."""
    waits = [length / speed for length, speed in zip(queue_lengths, speeds, strict=True)]
    if waits[home] > max(_OVERLOAD * min(waits), sum(queue_lengths) / sum(speeds)):
        return list(order)
    return _with_first(order, home)


def _with_first(order: Sequence[int], first: int) -> list[int]:
    others = list(order)
    others.remove(first)
    return [first, *others]


def _check(speeds: Sequence[float]) -> None:
    if not speeds or not min(speeds) > 0 or sum(speeds) == math.inf:
        raise ValueError(f"speeds must be positive numbers: {list(speeds)}")


def _weight(owner: str, worker_id: str, speed: float) -> float:
    digest = blake2b(f"{owner}/{worker_id}".encode(), digest_size=6).digest()
    drawn = (int.from_bytes(digest, "little") + 0.5) / 2**48  # uniform in (0, 1)
    return -speed / math.log(drawn)
