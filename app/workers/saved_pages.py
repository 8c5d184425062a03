"""Opens the folder of saved pages for a worker's model, and saves the remaining pages when the worker ends.

Some imports are inside functions, as in `load`, because the service's other processes import this file too.
"""

import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.engine.memory.engine_memory import EngineMemory, MemoryOptions
from app.engine.model_runner import ModelRunner
from app.model_folder import ModelFolder
from app.sealing.sealed_model import SealedModel
from app.settings.applications import ModelApplicationSettings
from app.settings.worker import MemorySettings

if TYPE_CHECKING:
    from app.memory.io_threads import FolderStore

logger = logging.getLogger("ray.serve")

StoreFactory = Callable[[ModelApplicationSettings, ModelFolder, ModelRunner], "FolderStore"]
"""(settings, the model's files, loaded model) -> the store of its pages."""

_S_PER_DAY = 86400.0


def open_store(settings: ModelApplicationSettings, files: ModelFolder, runner: ModelRunner) -> "FolderStore":
    """Opens the store of the native model's pages. Call it before the engine's first step.

    Raises MemoryFolderError, OSError.
    """
    from app.engine.native_runner import NativeRunner
    from app.memory.fingerprint import fingerprint, packed_digest

    assert isinstance(runner, NativeRunner)
    model = runner.model
    facts: dict[str, str | int] = {
        "tier": model.tier,
        "attention_tier": model.attention_tier,
        "kv_type": model.kv_type,
        "compute_type": settings.engine.compute_type,
        "bf16_prompts": model.has_bf16_prompts,
        "page_tokens": runner.page_tokens,
    }
    digest = files.digest if isinstance(files, SealedModel) else packed_digest(settings.model.path)
    return store_of(
        settings.memory,
        runner,
        fingerprint(digest, facts=facts, probe=runner.probe()),
    )


def store_of(memory: MemorySettings, runner: ModelRunner, fingerprint: bytes) -> "FolderStore":
    """Opens a store for a model with that fingerprint. Raises MemoryFolderError."""
    from app.memory.folder import PageFolder
    from app.memory.io_threads import FolderStore

    assert memory.folder is not None
    folder = PageFolder(
        Path(memory.folder).absolute(),
        fingerprint=fingerprint,
        page_bytes=runner.gathered_page_bytes,
        most_bytes=memory.bytes,
        most_bytes_per_user=memory.bytes_per_user,
        ttl_s=memory.ttl_days * _S_PER_DAY,
    )
    return FolderStore(
        folder,
        page_bytes=runner.gathered_page_bytes,
        page_tokens=runner.page_tokens,
        threads=memory.threads,
        write_bytes_per_s=memory.write_bytes_per_s,
    )


def memory_options(memory: MemorySettings) -> MemoryOptions:
    """Returns the engine's part of the settings."""
    return MemoryOptions(memory.save, memory.save_after_s, memory.restore, memory.min_tokens)


class SavingEngine(Protocol):
    """`app.engine.engine.Engine`, or one that saves no pages."""

    @property
    def memory(self) -> EngineMemory | None: ...
    @property
    def healthy(self) -> bool: ...


def save_what_is_left(engine: SavingEngine, timeout_s: float) -> None:
    """Saves all remaining pages before the engine stops; a warning says how many were not saved."""
    if engine.memory is None or not engine.healthy:
        return
    try:
        saved = engine.memory.flush(None).result(timeout_s)
    except FutureTimeoutError:
        logger.warning("not all pages could be saved within %s s; their chats will be computed again", timeout_s)
        return
    if saved.unsaved_pages:
        logger.warning("%d pages could not be saved; their chats will be computed again", saved.unsaved_pages)
