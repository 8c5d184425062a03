"""Permissions and results for the KV pages that a request's user has saved."""

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

_OWNER: Final = re.compile("[0-9a-f]{32}")
_SIZES: Final = {
    "names_key": 32,
    "conversation_key": 32,
    "shared_key": 32,
    "conversation_key_id": 16,
    "shared_key_id": 16,
}

MemoryMethod = Literal["flush_memory", "clear_memory", "forget_memory", "memory_use"]
"""The methods of `app.workers.worker.Worker` for a user's pages."""

SaveOutcome = Literal["saved", "kept", "failed"]
"""Outcome for one page. "kept": it had been saved before. "failed": it is not on disk, and the reason was logged."""


@dataclass(frozen=True, slots=True)
class MemoryGrant:
    """Permission for a user's saved pages. It comes from the accounts, never from a request's fields."""

    owner: str
    """The folder of the user's pages: 32 hex digits, HMAC-SHA256(KEK, user id) cut to 16 bytes."""
    names_key: bytes = field(repr=False)
    """32 bytes, HKDF(UMK, "names"), from which the chain of page names starts."""
    conversation_key: bytes = field(repr=False)
    """32 bytes: the conversation's key, CK."""
    shared_key: bytes = field(repr=False)
    """32 bytes: the user's key SK, for pages wholly inside the first `shared_tokens`."""
    conversation_key_id: bytes
    """16 bytes, stored in a page's header."""
    shared_key_id: bytes
    """16 bytes."""
    shared_tokens: int
    """Length of system prompt and tools at the beginning of the prompt."""
    save: bool
    """Whether new pages may be saved."""
    quota_bytes: int | None = None
    """Quota of the user's files in a folder; None: the service's setting."""

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field and not its value."""
        if not _OWNER.fullmatch(self.owner):
            raise ValueError("owner: not 32 hex digits")
        for name, size in _SIZES.items():
            if len(getattr(self, name)) != size:
                raise ValueError(f"{name}: not {size} bytes")
        if self.shared_tokens < 0:
            raise ValueError("shared_tokens: less than 0")


@dataclass(frozen=True, slots=True)
class PageName:
    """The name of a full page: its index in the text, and the digest of its tokens and all before them."""

    digest: bytes
    """32 bytes, from the chain in `app.engine.pages.page_names`."""
    index: int
    """0 for a text's first page."""


@dataclass(frozen=True, slots=True)
class SavedPages:
    """The result of saving one user's pages on one worker."""

    saved_pages: int
    """Pages that this call has saved, without those that were saved while a chat was idle."""
    saved_bytes: int
    """Size of those pages."""
    unsaved_pages: int
    """Pages that could not be saved: the disk is full, slow or gone, or the user's quota is exceeded."""


class CallEachWorker(Protocol):
    """Calls every worker, not one of them as a request does."""

    async def __call__(self, method: MemoryMethod, *arguments: object) -> list[Any]:
        """Returns each worker's answer; None for a worker that failed or did not answer in time."""
