"""Marks of crashes: a worker that ends by a fault of its own leaves a file, and one that is killed leaves none.

The files are in Ray's session folder, so a mark is seen on the worker's machine only. Python's faulthandler writes
them: lines of code, no data. Knows neither Ray nor the engine.
"""

import contextlib
import faulthandler
from pathlib import Path

CRASHES_FOLDER = "crashes"
"""The folder of the files, in Ray's session folder. Each is named after an actor."""


def mark_crashes(folder: Path, actor: str) -> None:
    """From now on a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) leaves a mark of this process."""
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
