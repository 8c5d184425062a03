"""`/v1/memory`: what clients send and read."""

from typing import Literal

from pydantic import BaseModel

from app.interface.wire.fields import Identifier, Text, Wire


class MemoryUse(BaseModel):
    """What the user's saved pages take, in the folder that has most of them."""

    object: Literal["memory"] = "memory"
    bytes: int
    quota_bytes: int
    """More than that is not kept: those unused for longest go first."""
    pages: int
    unacknowledged: int
    """Workers that failed or did not answer."""


class SavedMemory(BaseModel):
    """What became of the user's pages, on all workers together."""

    object: Literal["memory.saved"] = "memory.saved"
    saved_pages: int
    """Those that were still to be saved and are on disk now."""
    saved_bytes: int
    unsaved_pages: int
    """The disk is full, slow or gone; they are computed again."""
    unacknowledged: int
    """Workers that failed or did not answer."""


class ForgottenMemory(BaseModel):
    """The keys are destroyed: nobody can open these pages any more, wherever there are copies of them."""

    object: Literal["memory.forgotten"] = "memory.forgotten"
    conversations: int
    files: int
    """Removed from disk."""
    unacknowledged: int
    """Workers that failed or did not answer: files may still be there, which nobody can open."""


class WarmRequest(Wire):
    """`POST /v1/memory/warm`."""

    conversation: Identifier
    """The id of a stored conversation."""
    model: Identifier | None = None
    """None: the first one that is served."""
    instructions: Text | None = None
    """Those that the next turn will have."""


class WarmedMemory(BaseModel):
    """A conversation's pages are in a worker's memory."""

    object: Literal["memory.warmed"] = "memory.warmed"
    tokens: int
    """Of the conversation so far."""
    remembered_tokens: int
    """Of them, those that were in memory or on disk; the rest was computed."""
