"""Keeps the progress of a long conversion on disk, so that an interrupted one can resume.

The folder lies beside the output and belongs to one set of options: `key` is a digest of everything that the result
depends on. Each array is written under a temporary name and renamed, and the number of finished steps is written last,
so that the contents are always complete. Does not know what the arrays are.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.errors import OutputError

_STATE = "state.json"


class WorkFolder:
    """Arrays by name, and the number of finished steps."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self.steps_done = 0
        state = self._read_state()
        if state.get("key") == key:
            self.steps_done = int(state["steps_done"])
            return
        for stale in path.iterdir():
            stale.unlink()

    def save(self, name: str, values: NDArray[Any]) -> None:
        """Writes an array. Raises OutputError where it can't be written."""
        self._replace(f"{name}.npy", lambda file: np.save(file, values))

    def load(self, name: str) -> NDArray[Any]:
        """A saved array, mapped into memory: rows are read when they are used."""
        values: NDArray[Any] = np.load(self._path / f"{name}.npy", mmap_mode="r")
        return values

    def has(self, name: str) -> bool:
        """Whether the array was saved."""
        return (self._path / f"{name}.npy").exists()

    def finish_step(self, number: int) -> None:
        """Records that the steps up to and including this one are finished."""
        text = json.dumps({"key": self._key, "steps_done": number + 1}).encode()
        self._replace(_STATE, lambda file: file.write(text))
        self.steps_done = number + 1

    def forget(self, name: str) -> None:
        """Removes an array."""
        (self._path / f"{name}.npy").unlink(missing_ok=True)

    def _read_state(self) -> dict[str, Any]:
        try:
            state = json.loads((self._path / _STATE).read_bytes())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) and isinstance(state.get("steps_done"), int) else {}

    def _replace(self, name: str, write: Any) -> None:
        target = self._path / name
        temporary = target.with_suffix(".writing")
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            raise OutputError(f"{target}: can't be written: {error.strerror}") from error


def work_folder_bytes(out: Path) -> int:
    """Bytes that an interrupted conversion to `out` has left on the disk."""
    return sum(path.stat().st_size for path in _place(out).glob("*"))


@contextmanager
def work_folder(out: Path, key: str) -> Iterator[WorkFolder]:
    """The work folder of the output `out`: removed when the block succeeds, kept when it fails.

    Raises OutputError: it can't be made, or another conversion is using it.
    """
    path = _place(out)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"{path}: can't be made: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputError(f"{path}: another conversion to {out} is at work") from error
        yield WorkFolder(path, key)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _place(out: Path) -> Path:
    return out.parent / f".{out.name}.calibration"
