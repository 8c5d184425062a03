"""Notes about a worker's start for the program that waits for it: one file per model, in Ray's session folder.

A note is only a hint: it may be missing, or come from another worker of the same model. Knows neither Ray nor the
engine.
"""

import contextlib
import urllib.parse
from enum import StrEnum
from pathlib import Path

STARTS_FOLDER = "starts"
"""The folder of the files, in Ray's session folder."""


class StartPhase(StrEnum):
    """The phases of a worker's start, in order."""

    LOADING = "loading"
    WARMING_UP = "warming up"
    READY = "ready"


def note_phase(folder: Path, model: str, phase: StartPhase) -> None:
    """Notes the present phase of a worker of the model. Write errors are ignored."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        _file(folder, model).write_text(phase)


def noted_phase(folder: Path, model: str) -> StartPhase | None:
    """The phase last noted for the model; None: no worker has begun."""
    with contextlib.suppress(OSError, ValueError):  # a file that is just being written is empty
        return StartPhase(_file(folder, model).read_text())
    return None


def _file(folder: Path, model: str) -> Path:
    return folder / urllib.parse.quote(model, safe="")
