"""The types of `/v1/memory`."""

from typing import Literal

from pydantic import BaseModel

from app.interface.wire.fields import Identifier, Text, Wire


class MemoryUse(BaseModel):
    """The size of the user's saved KV pages, in the fullest folder."""

    object: Literal["memory"] = "memory"
    bytes: int
    quota_bytes: int
    """The maximum size; beyond it, least recently used KV pages are evicted."""
    pages: int
    unacknowledged: int
    """Workers that failed or did not answer."""


class SavedMemory(BaseModel):
    """The result of saving the user's KV pages, over all workers."""

    object: Literal["memory.saved"] = "memory.saved"
    saved_pages: int
    """KV pages that were unsaved and are on disk now."""
    saved_bytes: int
    unsaved_pages: int
    """KV pages that could not be saved: the disk is full, slow or gone. They are computed again."""
    unacknowledged: int
    """Workers that failed or did not answer."""


class ForgottenMemory(BaseModel):
    """The keys are destroyed: nobody can open these KV pages any more, wherever copies exist."""

    object: Literal["memory.forgotten"] = "memory.forgotten"
    conversations: int
    files: int
    """Files removed from disk."""
    unacknowledged: int
    """Workers that failed or did not answer: they may still have files, which nobody can open."""


class WarmRequest(Wire):
    """`POST /v1/memory/warm`."""

    conversation: Identifier
    """The id of a stored conversation."""
    model: Identifier | None = None
    """None: the first served model."""
    instructions: Text | None = None
    """The instructions of the next turn."""


class WarmedMemory(BaseModel):
    """The conversation's KV pages are loaded in a worker's memory."""

    object: Literal["memory.warmed"] = "memory.warmed"
    tokens: int
    """Tokens of the conversation so far."""
    remembered_tokens: int
    """Tokens that were in memory or on disk; the others were computed."""
