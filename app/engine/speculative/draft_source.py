"""What speculation needs of a model that drafts: a draft model beside the target, or layers of the target itself.

Knows neither when drafts pay nor what becomes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.engine.generation import Generation
from app.engine.scheduling.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One drafted token."""

    token: int
    probability: float
    """That the drafting model gave it, at temperature 1: how often such tokens are right is learned by it."""


class DraftSource(Protocol):
    """Drafts for several sequences at once. Used by the engine's thread only, never during a step of the target.

    What it keeps of a sequence depends on the sequence's tokens alone: it compares what it has computed with
    `Generation.tokens`, so nobody tells it which of its drafts were right.
    """

    kind: str
    """Its name in metrics: "model", "mtp" or "eagle"."""
    most_tokens: int
    """The most tokens that it drafts for one sequence and step."""
    cost_share: float
    """How long one of its steps for one sequence takes, relative to the target's of one row, until it is measured."""

    def lag(self, generation: Generation) -> int | None:
        """How many tokens `follow` must compute before it can draft for the generation; 0: none.

        None: it can't draft for it, for lack of memory or because the text is too long for it.
        """

    def follow(self, generation: Generation, tokens: int) -> None:
        """Computes the next `tokens` tokens of those that it lags behind, or fewer."""

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """Drafts one more token for each, in one step: the one after its text and its `draft_tokens`.

        It lags behind none of them. None: it has no token for this one, and `draft` is not called again for it in this
        step of the target.
        """

    def forget(self, sequence: SequenceState) -> None:
        """Forgets a sequence that leaves its slot, because it has ended or was preempted; it still has the slot.

        Called for all sequences, also for those that it has never seen. What it has of the text may stay cached.
        """

    def pause(self, sequence: SequenceState) -> None:
        """Gives back what others may need: the sequence keeps its slot, and is not computed for some time."""

    def clear(self, owner: str) -> None:
        """Removes what is cached of a user's texts, whose pages are saved (`MemoryGrant.owner`): the user has left.

        Of texts that still run it keeps nothing when they end.
        """

    def release_memory(self) -> None:
        """Gives its memory back until the next step. No sequence runs."""
