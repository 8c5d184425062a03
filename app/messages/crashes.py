"""Crash marks: a worker that crashes leaves a file, and one that is killed leaves none.

The files are in Ray's session folder, so a mark is seen on the worker's machine only. Python's faulthandler writes
them: lines of code, no data. Knows neither Ray nor the engine.
"""

import contextlib
import faulthandler
from pathlib import Path

CRASHES_FOLDER = "crashes"
"""The folder of the files, in Ray's session folder. Each is named after an actor."""


def mark_crashes(folder: Path, actor: str) -> None:
    """Leaves a mark of this process at any later fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT)."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        file = (folder / actor).open("wb")
        faulthandler.enable(file)  # keeps the file open


def has_crashed(folder: Path, actor: str) -> bool:
    """Whether the process of that actor has left a mark."""
    try:
        return (folder / actor).stat().st_size > 0
    except OSError:
        return False
