"""How many cases of one kind the tests try: `make test` has each kind once, `make conformance` has more.

Knows nothing of what is tried.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

FULL = bool(os.environ.get("REDOUBT_TEST_FULL"))
"""Whether to try all of it."""


def some(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases of a grid in which each value of each axis occurs; with FULL the whole grid.

    For axes that do not depend on each other. What selects code together, such as a kernel's tier and the type of its
    weights, belongs in one axis or in parameters of their own.
    """
    if FULL:
        return list(itertools.product(*axes))
    longest = max(map(len, axes))
    return list(itertools.islice(zip(*map(itertools.cycle, axes), strict=True), longest))


def examples(most: int) -> int:
    """How many examples Hypothesis tries of a property: the most with FULL."""
    return most if FULL else -(-most // 4)
