"""Divides a worker's memory between recurrent states and the KV cache.

The state pages that sequences need come first, then some to cache, and the rest is for KV pages, which get at least a
quarter. If the states of all sequences would take more than half, fewer sequences run at a time.

Knows the sizes of pages, and not what is in them. The native extension is imported inside the function, as in `load`.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.engine.scheduling.limits import STATE_PAGES_EACH, least_state_pages
from app.settings.applications import ModelApplicationSettings

if TYPE_CHECKING:
    from kernels import _native

logger = logging.getLogger("ray.serve")

CACHED_PAGES: Final = 8
"""State pages beyond those of the sequences, for the prefix cache and long chunks. More help little, because the pages
of free slots cache too."""
_MOST_STATES: Final = 2
"""The states of sequences take at most one in this many parts of the memory."""
_MOST_CACHED: Final = 4
"""Pages that are only cached take at most one in this many parts."""
_LEAST_KV_TOKENS: Final = 2048
"""A worker with fewer KV tokens is of no use, if contexts are longer."""


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The division of `engine.kv_memory_bytes`."""

    sequences: int
    """Sequences that can run at a time."""
    state_pages: int
    kv_bytes: int
    """Bytes left for the KV cache."""


def memory_of(
    settings: ModelApplicationSettings,
    folder: "str | _native.ModelFiles",
    kv_type: str,
    max_context_tokens: int,
    sequences: int,
    predicts: bool | str = False,
) -> WorkerMemory:
    """Divides the worker's memory for that model; all of it is KV cache if there are no recurrent states.

    sequences: how many should run at a time; a log line says if their states don't fit. kv_type: not "auto". predicts:
    whether a layer of multi-token prediction has keys too, or the folder of an EAGLE-3 head, which has.

    Raises ValueError for settings that a model with states can't have, `_native.PackedFileError`, OSError.
    """
    from kernels import _native

    memory_bytes = settings.engine.kv_memory_bytes
    page_bytes = _native.Model.state_page_bytes(folder)
    if page_bytes == 0:
        return WorkerMemory(sequences, 0, memory_bytes)
    if settings.model.on_overflow == "shift":
        raise ValueError(
            "model.on_overflow is shift, but this model has recurrent states, which depend on all tokens before, so "
            "that its contexts can't be shifted: set it to refuse"
        )
    if settings.memory.folder is not None:
        raise ValueError(
            "memory.folder is set, but this model has recurrent states, which are too large to be saved, and its pages "
            "are of no use without them: leave memory.folder out"
        )
    windows = _native.Model.page_group_windows(folder, max_context_tokens, predicts)
    groups = len(windows) - 1  # the last one is the states'
    least_kv_pages = -(-min(_LEAST_KV_TOKENS, max_context_tokens) // _native.PAGE_TOKENS) * groups
    least_kv_bytes = least_kv_pages * _native.Model.kv_page_bytes(folder, kv_type, max_context_tokens, predicts)
    memory = divide(memory_bytes, page_bytes=page_bytes, least_kv_bytes=least_kv_bytes, sequences=sequences)
    if memory.sequences < sequences:
        logger.warning(
            "Requests that run at a time: %d, not worker.max_concurrent_requests (%d). The recurrent states of each"
            " take %.0f MB, and half of engine.kv_memory_bytes (%d) is for them; for all of them set it to %d",
            memory.sequences,
            settings.worker.max_concurrent_requests,
            STATE_PAGES_EACH * page_bytes / 1e6,
            memory_bytes,
            memory_for(sequences, page_bytes),
        )
    return memory


def divide(memory_bytes: int, *, page_bytes: int, least_kv_bytes: int, sequences: int) -> WorkerMemory:
    """Divides the memory of a model whose state page has `page_bytes`, for at most `sequences` sequences at a time.

    least_kv_bytes: the smallest useful KV cache.

    Raises ValueError if the memory is too little for one sequence.
    """
    pages = min(memory_bytes // _MOST_STATES, memory_bytes - least_kv_bytes) // page_bytes
    sequences = max(1, min(sequences, (pages - least_state_pages(0)) // STATE_PAGES_EACH))
    needed_bytes = least_state_pages(sequences) * page_bytes
    if needed_bytes + least_kv_bytes > memory_bytes:
        raise ValueError(
            f"engine.kv_memory_bytes is {memory_bytes}, but this model's recurrent states take {needed_bytes} bytes "
            f"for one request at a time, and few keys and values {least_kv_bytes}: set it to at least "
            f"{needed_bytes + least_kv_bytes}"
        )
    spare_bytes = min(memory_bytes // _MOST_CACHED, memory_bytes - needed_bytes - least_kv_bytes)
    pages = least_state_pages(sequences) + min(CACHED_PAGES, spare_bytes // page_bytes)
    return WorkerMemory(sequences, pages, memory_bytes - pages * page_bytes)


def memory_for(sequences: int, page_bytes: int) -> int:
    """The memory in bytes with which `sequences` sequences can run at a time."""
    return _MOST_STATES * least_state_pages(sequences) * page_bytes
