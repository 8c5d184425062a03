"""Users' saved KV pages over all workers of all models: their size, saving and forgetting them.

Every worker is called, so that none uses what another has forgotten. Workers that did not answer are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.messages.memory import CallEachWorker, SavedPages


@dataclass(frozen=True, slots=True)
class KvPageUse:
    """The size of a user's saved KV pages."""

    pages: int
    bytes: int
    unacknowledged: int
    """Workers that failed or did not answer."""


@dataclass(frozen=True, slots=True)
class AllSaved:
    """The result of saving a user's KV pages on all workers."""

    saved_pages: int = 0
    saved_bytes: int = 0
    unsaved_pages: int = 0
    unacknowledged: int = 0


@dataclass(frozen=True, slots=True)
class AllForgotten:
    """The removed KV pages of a user."""

    files: int
    unacknowledged: int
    """Workers that failed or did not answer: they still have pages, which nobody can open."""


class UserKvPages:
    """The saved KV pages of all workers, by owner (`PageKeys.owner`)."""

    def __init__(self, call_each: CallEachWorker, bytes_per_user: int) -> None:
        """bytes_per_user: the quota of a user in a folder."""
        self._call_each = call_each
        self.bytes_per_user = bytes_per_user

    async def use(self, owner: str) -> KvPageUse:
        """Returns the use in the fullest folder, if there are several: the quota is per folder."""
        answers: Sequence[tuple[int, int] | None] = await self._call_each("memory_use", owner)
        known = [answer for answer in answers if answer is not None]
        pages, bytes_ = max(known, key=lambda answer: answer[1], default=(0, 0))
        return KvPageUse(pages, bytes_, len(answers) - len(known))

    async def save(self, owner: str) -> AllSaved:
        """Saves the KV pages durably now."""
        return _sum(await self._call_each("flush_memory", owner))

    async def clear(self, owner: str) -> AllSaved:
        """Saves the KV pages and then removes them from memory."""
        return _sum(await self._call_each("clear_memory", owner))

    async def forget(self, owner: str, key_id: bytes | None) -> AllForgotten:
        """Removes all KV pages, or those under one key, from memory and disk. Destroy the key before."""
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
