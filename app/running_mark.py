"""Marks that a process writes answers which no client listens to, for who ends the processes of a Ray.

A locked file in the Ray's folder: the kernel takes the lock back when its process ends, however that comes. Knows
nothing of answers.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NAME = "answers-{}"


class RunningMark:
    """The mark of this process."""

    def __init__(self, folder: Path | None) -> None:
        """folder: that of the Ray; None: nobody looks, and nothing is marked."""
        self._path = None if folder is None else folder / _NAME.format(os.getpid())
        self._file: int | None = None

    def set(self, runs: bool) -> None:
        """Changes whether anything runs. A disk that takes no file leaves it unmarked."""
        if self._path is None or runs == (self._file is not None):
            return
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._path.unlink(missing_ok=True)
            return
        with suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)


def is_marked(folder: Path) -> bool:
    """Whether any process of the Ray with this folder has its mark set."""
    for path in folder.glob(_NAME.format("*")):
        with suppress(FileNotFoundError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False
