"""The access log: one JSON line per request, in files of this ingress alone.

A thread writes them, so a slow disk delays no answer; lines that can't be written are dropped and counted. The lines
are built without access to texts (`app.interface.http.watched_requests`).
"""

import errno
import fcntl
import logging
import os
import queue
import tempfile
from collections.abc import Callable, Mapping
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Final

import orjson

from app.settings.knobs import SettingsError

_FILES: Final = 4
"""The current file and those rotated before it."""
_MOST_WAITING: Final = 8192
"""The limit of lines that wait for the disk."""
_LONGEST_STOP_S: Final = 5.0
_MOST_INGRESSES: Final = 1000


class AccessLog:
    """One ingress's files: `access-1.jsonl` and the rotated `.1` to `.3`; or 2, 3 ... beside other ingresses."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Uses the first number that no other process has. Raises SettingsError if the folder can't be written to.

        most_bytes: the limit of all files of this ingress together; the oldest are deleted.
        """
        check_folder(folder)
        self.on_drop: Callable[[], None] = lambda: None
        """Called for each lost line, in any thread."""
        try:
            self._lock, name = _free_name(folder)
            self._file = _File(folder / name, most_bytes // _FILES, self._dropped)
        except OSError as error:
            raise _unwritable(folder, error) from error
        self._lines: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._listener = _Listener(self._lines, self._file)
        self._listener.start()

    def write(self, line: Mapping[str, Any]) -> None:
        """Queues the line for writing, in order. Does not block or raise."""
        try:
            self._lines.put_nowait(logging.makeLogRecord({"msg": orjson.dumps(line).decode()}))
        except queue.Full:
            self._dropped()

    def close(self) -> None:
        """Writes the queued lines. Blocks as long as the disk does, so call it in a thread."""
        try:
            self._listener.stop()
        except queue.Full:  # the disk hangs
            return
        self._file.close()
        os.close(self._lock)

    def _dropped(self) -> None:
        self.on_drop()


class _Listener(QueueListener):
    """Writes the queued lines in a thread."""

    def __init__(self, lines: "queue.Queue[Any]", file: RotatingFileHandler) -> None:
        super().__init__(lines, file)
        self._lines = lines

    def enqueue_sentinel(self) -> None:
        """Asks the thread to end. Raises queue.Full."""
        self._lines.put(None, timeout=_LONGEST_STOP_S)


class _File(RotatingFileHandler):
    """The rotating files, readable only by the service's user."""

    def __init__(self, path: Path, most_bytes: int, dropped: Callable[[], None]) -> None:
        self._dropped = dropped
        super().__init__(path, maxBytes=most_bytes, backupCount=_FILES - 1, encoding="utf-8")

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding="utf-8", opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Counts a lost line: the disk is full, or the folder is gone."""
        self._dropped()
        stream: IO[str] | None = self.stream
        if stream is not None and stream.closed:  # rotation failed after the old file was closed
            self.stream = None  # makes the library open it again


def check_folder(folder: Path) -> None:
    """Creates the folder if it is missing. Raises SettingsError if it can't be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> SettingsError:
    reason = error.strerror or str(error)
    return SettingsError(f"ingress.access_log_folder: {folder}: {reason}; it must be a folder that can be written to")


def _free_name(folder: Path) -> tuple[int, str]:
    """Returns a descriptor whose lock reserves the name for this process, and the name."""
    for number in range(1, _MOST_INGRESSES):
        lock = _private(str(folder / f".access-{number}.lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        except OSError:
            os.close(lock)
            raise
        return lock, f"access-{number}.jsonl"
    raise OSError(errno.EMFILE, "too many ingresses write there")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
