"""Loads what drafts for a worker's model: the draft model that is set, on the same cores.

Its pages, and the keys of what drafts as a part of the model, come beside `engine.kv_memory_bytes`, so that the model
holds as many tokens with drafts as without. A layer of the model itself, or an EAGLE-3 head that is set, is loaded with
the model. The native extension is imported inside the functions, as in `load`. Knows nothing of requests.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.draft_check import DraftError, check_draft
from app.engine.model_runner import ModelRunner
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.speculation import MAX_RUNNING
from app.messages.defaults import STEP_TOKENS
from app.model_folder import WEIGHTS, ModelFolder, context_tokens, is_draft_head, read_json
from app.sealing.sealed_model import SealedModel
from app.settings.applications import ModelApplicationSettings
from app.workers.native_options import chosen_kv_type, native_files, native_options, resident_sizes
from app.workers.numa import Slot
from app.workers.packed_header import read_header

if TYPE_CHECKING:
    from kernels import _native

logger = logging.getLogger("ray.serve")

_STEP_SHARE: Final = 0.03
"""Of a target's step, what a draft step takes beside reading its weights, until it was measured."""

DraftFactory = Callable[[ModelApplicationSettings, Path | SealedModel, Slot, int, ModelRunner], DraftSource | None]
"""(settings, the model's files, cores, number of threads, the loaded model) -> what drafts for it; None: nothing."""


def used_predictor(settings: ModelApplicationSettings, files: Path | SealedModel) -> bool | str:
    """What drafts as a part of the model: the folder of the EAGLE-3 head that is set, True for a layer of its own.

    False: nothing, or another model drafts. Raises DraftError for a head that is not for this model,
    `_native.PackedFileError`, OSError.
    """
    from kernels import _native

    if settings.model.draft is None:
        return settings.engine.draft_tokens > 0 and _native.Model.has_predictor(native_files(files))
    head = _head(settings)
    if head is None:
        return False
    _check(files, settings.model.name, Path(head))
    return head


def draft_kv_bytes(
    settings: ModelApplicationSettings, folder: "str | _native.ModelFiles", kv_type: str, kv_bytes: int
) -> int:
    """Memory for the draft model's pages beside the model's `kv_bytes`, with as many tokens.

    kv_type: the model's. 0 without a draft model, and for a head, whose keys are in the model's pages. With sliding
    windows it is as if the model had none. Raises `_native.PackedFileError`, OSError.
    """
    from kernels import _native

    draft = _draft(settings)
    if draft is None or _head(settings) is not None:
        return 0
    own = _native.Model.kv_page_bytes(draft, chosen_kv_type(settings.engine, draft))
    return -(-kv_bytes * own // max(_native.Model.kv_page_bytes(folder, kv_type), 1))


def predictor_kv_bytes(folder: "str | _native.ModelFiles", kv_type: str, kv_bytes: int, predicts: bool | str) -> int:
    """Memory for the keys of the model's own layer or head beside `kv_bytes`, so that as many tokens fit as without it.

    predicts: as a runner's. Raises `_native.PackedFileError`, OSError.
    """
    from kernels import _native

    if not predicts:
        return 0
    without = _native.Model.kv_page_bytes(folder, kv_type)
    more = _native.Model.kv_page_bytes(folder, kv_type, predicts=predicts) - without
    return -(-kv_bytes * more // max(without, 1))


def drafting_bytes(settings: ModelApplicationSettings, files: Path | SealedModel) -> tuple[int, int]:
    """What drafts take of a worker's memory beside the model and `engine.kv_memory_bytes`, at most: weights, and keys.

    0 for files without weights, as in tests. Raises what `used_predictor` raises.
    """
    header = read_header(files)
    if header is None or (_draft(settings) is None and not (settings.engine.draft_tokens and header.predicts)):
        return 0, 0
    folder, kv_bytes = native_files(files), settings.engine.kv_memory_bytes
    kv_type = chosen_kv_type(settings.engine, folder)
    keys = predictor_kv_bytes(folder, kv_type, kv_bytes, used_predictor(settings, files))
    return draft_bytes(settings), keys + draft_kv_bytes(settings, folder, kv_type, kv_bytes)


def load_drafts(
    settings: ModelApplicationSettings, files: Path | SealedModel, slot: Slot, threads: int, runner: ModelRunner
) -> DraftSource | None:
    """Loads the draft model, after the target, unless that drafts by itself.

    Raises DraftError, and what `NativeRunner` raises.
    """
    from app.engine.native_runner import NativeRunner, kv_pages_within
    from app.engine.speculative.draft_model import DraftModel
    from app.engine.speculative.predictor_drafts import EAGLE, MTP, PredictorDrafts
    from app.workers.state_memory import memory_of

    draft = _draft(settings)
    if isinstance(runner, NativeRunner) and runner.predicts:
        kind = MTP if _head(settings) is None else EAGLE
        return PredictorDrafts(runner, settings.engine.draft_tokens, kind=kind)
    if draft is None:
        return None
    _check(files, settings.model.name, Path(draft))
    folder = native_files(files)
    target_kv = chosen_kv_type(settings.engine, folder)
    memory = memory_of(settings, folder, target_kv, runner.max_context_tokens, runner.max_sequences)
    options = native_options(settings, draft, slot, threads)
    loaded = NativeRunner(
        draft,
        **options,
        kv_pages=kv_pages_within(
            draft, options["kv_type"], draft_kv_bytes(settings, folder, target_kv, memory.kv_bytes)
        ),
        max_sequences=min(MAX_RUNNING, runner.max_sequences),
        max_step_tokens=STEP_TOKENS,
        max_context_tokens=context_tokens(Path(draft), runner.max_context_tokens),
    )
    share = draft_bytes(settings) / _weights_bytes(files) + _STEP_SHARE
    logger.info(
        "%s drafts for %s. Its memory beside engine.kv_memory_bytes, at most: %s",
        draft,
        settings.model.name,
        resident_sizes(loaded.model),
    )
    return DraftModel(
        loaded,
        target_vocab_size=runner.vocab_size,
        most_tokens=settings.engine.draft_tokens,
        cost_share=min(share, 1.0),
    )


def draft_bytes(settings: ModelApplicationSettings) -> int:
    """Size of the draft model's weights; 0: there is none. Raises OSError."""
    draft = _draft(settings)
    return 0 if draft is None else (Path(draft) / WEIGHTS).stat().st_size


def _draft(settings: ModelApplicationSettings) -> str | None:
    """The folder of the draft model that is used."""
    return settings.model.draft if settings.engine.draft_tokens else None


def _head(settings: ModelApplicationSettings) -> str | None:
    """The folder of the draft that is used, if it is an EAGLE-3 head."""
    draft = _draft(settings)
    if draft is None:
        return None
    return draft if is_draft_head(read_json(Path(draft) / "config.json", optional=True)) else None


def _check(files: ModelFolder, name: str, draft: Path) -> None:
    """Raises DraftError for a model that can't draft for these files."""
    from kernels import _native

    if not (draft / WEIGHTS).is_file():
        raise DraftError(f"model.draft: {draft} is not a converted model. Convert it first: redoubt convert")
    if _native.Model.state_page_bytes(str(draft)):
        raise DraftError(f"model.draft: {draft} has recurrent states, which a draft model can't have")
    try:
        check_draft(files, name, draft)
    except ValueError as error:
        raise DraftError(f"model.draft: {error}") from error


def _weights_bytes(files: Path | SealedModel) -> int:
    return files.size(WEIGHTS) if isinstance(files, SealedModel) else (files / WEIGHTS).stat().st_size
