"""How often a model's draft tokens are right, learned by the probability that the drafting model itself gave them.

A draft model knows when it guesses: of tokens to which it gives 0.95 nearly all are right, of those with 0.3 few. The
relation differs from model to model, and with sampling, so it is measured. Knows neither costs nor sequences.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import Final

_EDGES: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Bounds of the bins of probabilities."""
_WEIGHT: Final = 8
"""How many outcomes the initial chance of a bin counts for."""
_MOST_WEIGHT: Final = 64
"""The mean of a bin covers about this many outcomes."""


class DraftChances:
    """Acceptance rates by bins of the drafting model's probability."""

    __slots__ = ("_chances", "_weights")

    def __init__(self) -> None:
        bounds = (0.0, *_EDGES, 1.0)
        middles = [(low + high) / 2 for low, high in pairwise(bounds)]
        self._chances = [0.1 + 0.85 * middle for middle in middles]
        self._weights = [_WEIGHT] * len(middles)

    def of(self, probability: float) -> float:
        """The chance that a draft token with this probability is right, if those before it are."""
        return self._chances[bisect_right(_EDGES, probability)]

    def learn(self, probability: float, right: bool) -> None:
        """Learns whether one was right. Call it only if those before it were."""
        place = bisect_right(_EDGES, probability)
        self._weights[place] = min(self._weights[place] + 1, _MOST_WEIGHT)
        self._chances[place] += (right - self._chances[place]) / self._weights[place]
