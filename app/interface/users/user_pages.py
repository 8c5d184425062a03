"""Users' saved pages, over all workers of all models: what they take, saving them, forgetting them.

It calls every worker, so that none goes on with what another one has forgotten. What did not answer is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.messages.memory import CallEachWorker, SavedPages


@dataclass(frozen=True, slots=True)
class PageUse:
    """What a user's saved pages take."""

    pages: int
    bytes: int
    unacknowledged: int
    """Workers that failed or did not answer."""


@dataclass(frozen=True, slots=True)
class AllSaved:
    """What became of a user's pages on all workers."""

    saved_pages: int = 0
    saved_bytes: int = 0
    unsaved_pages: int = 0
    unacknowledged: int = 0


@dataclass(frozen=True, slots=True)
class AllForgotten:
    """What was removed of a user's pages."""

    files: int
    unacknowledged: int
    """Workers that failed or did not answer: what they have can't be opened by anybody, but is still there."""


class UserPages:
    """The pages that all workers save, by the owner in a user's keys."""

    def __init__(self, call_each: CallEachWorker, bytes_per_user: int) -> None:
        """bytes_per_user: what a folder holds of one user."""
        self._call_each = call_each
        self.bytes_per_user = bytes_per_user

    async def use(self, owner: str) -> PageUse:
        """In the folder that has most of them, if there are several: the quota is for each."""
        answers: Sequence[tuple[int, int] | None] = await self._call_each("memory_use", owner)
        known = [answer for answer in answers if answer is not None]
        pages, bytes_ = max(known, key=lambda answer: answer[1], default=(0, 0))
        return PageUse(pages, bytes_, len(answers) - len(known))

    async def save(self, owner: str) -> AllSaved:
        """Saves them now; they survive a loss of power."""
        return _sum(await self._call_each("flush_memory", owner))

    async def clear(self, owner: str) -> AllSaved:
        """As `save`, and then removes them from memory."""
        return _sum(await self._call_each("clear_memory", owner))

    async def forget(self, owner: str, key_id: bytes | None) -> AllForgotten:
        """Removes those that are encrypted with that key, or all, from memory and disk. Destroy the key before."""
        answers: Sequence[int | None] = await self._call_each("forget_memory", owner, key_id)
        known = [answer for answer in answers if answer is not None]
        return AllForgotten(sum(known), len(answers) - len(known))


def _sum(answers: Sequence[SavedPages | None]) -> AllSaved:
    known = [answer for answer in answers if answer is not None]
    return AllSaved(
        sum(answer.saved_pages for answer in known),
        sum(answer.saved_bytes for answer in known),
        sum(answer.unsaved_pages for answer in known),
        len(answers) - len(known),
    )
