"""How far a worker's start has come, for the program that waits for it: a file for each model, in Ray's session folder.

A note and no more: it may be missing, or another worker's of the same model. Knows neither Ray nor the engine.
"""

import contextlib
import urllib.parse
from enum import StrEnum
from pathlib import Path

STARTS_FOLDER = "starts"
"""The folder of the files, in Ray's session folder."""


class StartPhase(StrEnum):
    """What a worker does before it answers, in this order."""

    LOADING = "loading"
    WARMING_UP = "warming up"
    READY = "ready"


def note_phase(folder: Path, model: str, phase: StartPhase) -> None:
    """Writes what a worker of the model does now. Where that can't be written nothing happens."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        _file(folder, model).write_text(phase)


def noted_phase(folder: Path, model: str) -> StartPhase | None:
    """What a worker of the model did last; None: none has begun."""
    with contextlib.suppress(OSError, ValueError):  # a file that is just being written is empty
        return StartPhase(_file(folder, model).read_text())
    return None


def _file(folder: Path, model: str) -> Path:
    return folder / urllib.parse.quote(model, safe="")
