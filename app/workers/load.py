"""Loads what a worker runs: the native model on its cores, and the compiler of schemas.

The native extension and the schema compiler are imported inside the functions, because the service's other processes
import this file too. Knows nothing of requests.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.engine.model_runner import ModelRunner
from app.messages.defaults import STEP_TOKENS
from app.model_folder import ModelFolder, context_tokens
from app.sealing.sealed_model import SealedModel
from app.settings.applications import ModelApplicationSettings
from app.settings.worker import EngineSettings
from app.workers.drafts import predictor_kv_bytes, used_predictor
from app.workers.native_options import bind_memory, native_files, native_options, resident_sizes
from app.workers.numa import Slot
from app.workers.state_memory import memory_of

if TYPE_CHECKING:
    from app.workers.constraints import Constraints
    from kernels import _native

logger = logging.getLogger("ray.serve")

_EXPERT_ROWS: Final = 64
"""Rows per expert in the largest step: where many cores multiply faster than memory feeds them, a step with fewer takes
hardly less time. How long steps may take is bounded elsewhere (app/engine/scheduling/pace.py)."""
_MOST_STEP_TOKENS: Final = 2048
_MOST_ACTIVATION_BYTES: Final = 1 << 30

RunnerFactory = Callable[[ModelApplicationSettings, Path | SealedModel, Slot, int], ModelRunner]
"""(settings, the model's files, cores, number of threads) -> the loaded model."""


def with_allowed_binding(settings: ModelApplicationSettings) -> ModelApplicationSettings:
    """Turns `worker.bind_memory` off, with a warning, where this process may not bind memory."""
    from kernels import _native

    if not settings.worker.bind_memory or _native.may_bind_memory():
        return settings
    logger.warning(
        "The worker's memory is not bound to its NUMA node: this container may not call set_mempolicy and mbind. It"
        " serves, but slower if memory comes from another node. Allow both calls (capability SYS_NICE or a seccomp"
        " profile), or set worker.bind_memory to false"
    )
    return settings.model_copy(update={"worker": settings.worker.model_copy(update={"bind_memory": False})})


def load_model(settings: ModelApplicationSettings, files: Path | SealedModel, slot: Slot, threads: int) -> ModelRunner:
    """Loads the native model on these cores, with its memory on their node.

    Raises what `NativeRunner` raises, and ValueError for settings that a model with recurrent states can't have.
    """
    from app.engine.native_runner import NativeRunner, kv_pages_within

    engine = settings.engine
    folder = native_files(files)
    options = native_options(settings, folder, slot, threads)
    kv_type = options["kv_type"]
    slots = settings.worker.max_concurrent_requests
    predicts = used_predictor(settings, files)
    step_tokens = step_tokens_of(engine, folder, threads, slots, predicts)
    max_context_tokens = context_tokens(files, engine.max_context_tokens)
    page_groups = has_page_groups(settings)
    memory = memory_of(settings, folder, kv_type, max_context_tokens, _slots(slots, step_tokens), predicts)
    kv_bytes = memory.kv_bytes + predictor_kv_bytes(folder, kv_type, memory.kv_bytes, predicts)
    bind_memory(settings, slot, options["nodes"])
    runner = NativeRunner(
        folder,
        **options,
        kv_pages=kv_pages_within(
            folder,
            kv_type,
            kv_bytes,
            grouped_context_tokens=max_context_tokens if page_groups else None,
            predicts=predicts,
        ),
        state_pages=memory.state_pages,
        max_sequences=memory.sequences,
        max_step_tokens=step_tokens,
        max_context_tokens=max_context_tokens,
        page_groups=page_groups,
        predicts=predicts,
    )
    logger.info("Steps have at most %d tokens. Memory, at most: %s", step_tokens, resident_sizes(runner.model))
    if predicts:
        beside = (kv_bytes - memory.kv_bytes) / 1e6
        logger.info("Of that, %.0f MB are keys for drafts, beside engine.kv_memory_bytes", beside)
    return runner


def step_tokens_of(
    engine: EngineSettings, folder: "str | _native.ModelFiles", threads: int, slots: int, predicts: bool | str = False
) -> int:
    """Returns the most tokens of a step: as set, or enough that few steps need to read all of the model's experts.

    A chosen number takes at most _MOST_ACTIVATION_BYTES. Raises `_native.PackedFileError`, OSError.
    """
    from kernels import _native

    if engine.max_step_tokens is not None:
        return engine.max_step_tokens
    experts, per_token = _native.Model.experts(folder)
    wanted = _EXPERT_ROWS * experts // per_token if experts else STEP_TOKENS
    tokens = min(max(wanted, STEP_TOKENS), _MOST_STEP_TOKENS)
    while (
        tokens > STEP_TOKENS
        and _native.Model.activation_bytes(
            folder,
            threads=threads,
            max_sequences=_slots(slots, tokens),
            max_step_tokens=tokens,
            predicts=predicts,
        )
        > _MOST_ACTIVATION_BYTES
    ):
        tokens = max(tokens // 2, STEP_TOKENS)
    return tokens


def has_page_groups(settings: ModelApplicationSettings) -> bool:
    """Whether layers with a sliding window keep only its keys: not if pages are saved, or contexts shifted."""
    return settings.memory.folder is None and settings.model.on_overflow == "refuse"


def _slots(max_concurrent_requests: int, max_step_tokens: int) -> int:
    """One more slot per sixteen requests, rounded up: no caller has all slots, so others never wait for its answers."""
    return min(max_concurrent_requests + -(-max_concurrent_requests // 16), max_step_tokens)


def make_constraints(folder: ModelFolder, runner: ModelRunner) -> "Constraints | None":
    """Makes the model's compiler of schemas; None for a folder without a tokenizer, as in tests."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from app.workers.constraints import Constraints

    return Constraints(folder, runner.vocab_size)
