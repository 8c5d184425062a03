"""Drafts what a grammar forces: where one text alone can follow, as a key of a JSON schema, nothing need be guessed.

The model may still write that text in other tokens, so they are drafts like any others. Where nothing is forced,
another drafter's tokens are taken. Knows no grammar, and not what a draft token costs.
"""

from collections.abc import Sequence
from typing import Final

from app.engine.generation import Drafter
from app.engine.model_runner import TokenConstraint

_FIRST_CHANCE: Final = 0.85
"""That a forced token is the one which the model takes."""
_RATE: Final = 0.1
"""Weight of a new outcome in the running mean of the chance."""


class ForcedDrafter:
    """A `Drafter` of one output in a grammar."""

    __slots__ = ("_chance", "_constraint", "_forced", "_other")

    def __init__(self, constraint: TokenConstraint, other: Drafter) -> None:
        """constraint: the output's, which follows it. other: drafts from the same text."""
        self._constraint = constraint
        self._other = other
        self._chance = _FIRST_CHANCE
        self._forced: list[int] = []

    def look_up(self, most: int) -> list[int]:
        """As `Drafter.look_up`."""
        looked_up = self._other.look_up(most)
        self._forced = list(self._constraint.forced()[:most])
        return list(self._forced) or looked_up

    def chances(self) -> list[float]:
        """As `Drafter.chances`."""
        if not self._forced:
            return self._other.chances()
        return [self._chance**count for count in range(1, len(self._forced) + 1)]

    def learn(self, sampled: Sequence[int]) -> None:
        """As `Drafter.learn`."""
        self._other.learn(sampled)
        for forced, token in zip(self._forced, sampled, strict=False):
            self._chance += _RATE * ((forced == token) - self._chance)
            if forced != token:
                break

    def forget(self) -> None:
        """As `Drafter.forget`."""
        self._other.forget()
