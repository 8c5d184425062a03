"""Checks whether a model's files can be served: complete weights of the current layout, a tokenizer, a chat template.

It reads only the beginning of the weights, and knows nothing of the machine they run on.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from app.draft_check import check_draft
from app.interface.text.bounded_check import check_model
from app.messages.model_card import ModelCard
from app.model_folder import WEIGHTS, ChatModelError, is_draft_head, read_json
from app.sealing.image import SealedModelError
from app.sealing.sealed_model import SealedModel, open_model
from app.settings.applications import ModelApplicationSettings
from app.settings.knobs import SettingsError
from app.workers.packed_header import read_header
from quant.files.cache_folder import cache_folder
from quant.packed.packed_file import FORMAT, LAYOUT_VERSION

_HEADER_BYTES = 64 << 20
"""An upper bound for a packed file's header."""


def check_files(card: ModelCard) -> Sequence[str]:
    """Returns warnings about the model, a sentence each. Raises SettingsError if it can't be served."""
    files = opened_model(card)
    if isinstance(files, Path):
        _check_weights(files)
        if is_draft_head(read_json(files / "config.json", optional=True)):
            raise SettingsError(
                f"model.folder: {files} is an EAGLE-3 head, which drafts for a model and is none itself: set it as"
                " model.draft"
            )
    try:
        return check_model(card, "redoubt serve", passed=cache_folder() / "checked")
    except ChatModelError as error:
        raise SettingsError(f"model.folder: {error}") from error


def check_draft_of(settings: ModelApplicationSettings) -> None:
    """Raises SettingsError if there is a draft model, and it can't draft for the model."""
    if settings.model.draft is None:
        return
    draft = Path(settings.model.draft)
    _check_weights(draft, "model.draft")
    card = settings.model_card()
    try:
        check_draft(opened_model(card), card.name, draft)
    except ValueError as error:
        raise SettingsError(f"model.draft: {error}") from error


def opened_model(card: ModelCard) -> Path | SealedModel:
    """Opens the model's folder, or the sealed model. Raises SettingsError if it can't be opened."""
    try:
        return open_model(card)
    except SealedModelError as error:
        raise SettingsError(f"model.sealed: {error}") from error


def _check_weights(folder: Path, knob: str = "model.folder") -> None:
    """Raises SettingsError unless the weights are a complete packed file of the current layout."""
    path = folder / WEIGHTS
    unconverted = f"{knob}: {folder} is not a converted model. Convert it first: redoubt convert {folder} {folder}-int4"
    broken = f"{knob}: {path} is damaged: %s. Copy it again from where it was converted, or convert the model again"
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= _HEADER_BYTES else b""
        size_bytes = path.stat().st_size
    except OSError as error:
        raise SettingsError(f"{knob}: {path}: {error.strerror}") from error
    if b"redoubt-packed" not in text:
        raise SettingsError(unconverted)
    if len(text) < length:
        raise SettingsError(broken % f"its {size_bytes} bytes end within its header of {length}")
    try:
        header = json.loads(text)
        metadata = header["__metadata__"]
        ends = [8 + length + header[name]["data_offsets"][1] for name in header if name != "__metadata__"]
        if metadata["format"] != FORMAT:
            raise SettingsError(unconverted)
        if (layout := metadata.get("layout_version")) == LAYOUT_VERSION:
            read_header(folder)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise SettingsError(broken % f"its header can't be read: {type(error).__name__}: {error}") from error
    if layout != LAYOUT_VERSION:
        raise SettingsError(
            f"{knob}: {folder} has layout {layout}, and this Redoubt reads {LAYOUT_VERSION}. Bring it to today's:"
            f" redoubt convert {folder} {folder}-new"
        )
    if size_bytes != (expected := max(ends, default=8 + length)):
        raise SettingsError(broken % f"it has {size_bytes} bytes, and its header says {expected}")
