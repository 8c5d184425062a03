"""The private folder of a local service, which the service removes at its end, or the next service at its start.

Knows nothing of the folder's contents except its lock. The lock is held as long as the main process or its cleanup
process lives, and the kernel releases it however they end: a folder with a free lock belongs to a dead service.
"""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from app.launch import cleanup
from app.settings.environment import KEPT

_PREFIX = "redoubt-"
# A Unix socket's path has at most 107 characters. Below the folder HAProxy's sockets take 90, Ray's about 70.
_LONGEST_BASE = 14
_CLEANUP_TIMEOUT_S = 15.0


class PrivateFolder:
    """A folder that only this user can read, and a process that cleans up after the service.

    Processes of the service must have `environment` in their environment, which identifies them, and names a file in
    this process' memory (`app.accounts.kept_secrets`).
    """

    def __init__(self) -> None:
        """Makes the folder, after removing dead services' folders and ending the processes that they left."""
        base = tempfile.gettempdir()
        base = base if len(base) <= _LONGEST_BASE else "/tmp"
        remove_stale(Path(base))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        self._kept = os.memfd_create("redoubt")
        self.environment = {cleanup.MARK: str(self.path), KEPT: f"/proc/{os.getpid()}/fd/{self._kept}"}
        self._lock = _create_lock(self.path)
        self._cleanup = _start_cleanup(self.path, self._lock)

    def close(self, *, keep_logs: bool) -> None:
        """Ends the service's remaining processes, and removes the folder, or all but its logs."""
        assert self._cleanup.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self._cleanup.communicate(cleanup.KEEP_LOGS if keep_logs else b"", timeout=_CLEANUP_TIMEOUT_S)
        os.close(self._lock)
        os.close(self._kept)


def remove_stale(base: Path) -> None:
    """Removes the folders in `base` of this user's dead services, and ends the processes that these left.

    The newest folder that was kept for its logs stays.
    """
    logs: list[tuple[float, Path]] = []
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if not _is_ours(folder):
                continue
            if not (folder / "lock").exists():
                if cleanup.holds_logs(folder):
                    logs.append((folder.stat().st_mtime, folder))
            elif _is_free(folder / "lock"):
                cleanup.end_processes(folder)
                cleanup.remove(folder, keep_logs=False)
    for _, folder in sorted(logs)[:-1]:
        cleanup.remove(folder, keep_logs=False)


def _start_cleanup(folder: Path, lock: int) -> "subprocess.Popen[bytes]":
    """Starts the cleanup process, which shares the lock.

    Signals that end the service must not end it: it has a session of its own, and these signals blocked from the start.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        return subprocess.Popen(
            [sys.executable, "-I", cleanup.__file__, str(folder)],
            stdin=subprocess.PIPE,
            pass_fds=[lock],
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_ours(folder: Path) -> bool:
    """Whether it is a real folder that this user owns, and no other user may open."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _create_lock(folder: Path) -> int:
    """Creates a file that is locked from the first moment on."""
    unfinished = folder / "lock.new"
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unfinished.rename(folder / "lock")
    return descriptor


def _is_free(lock: Path) -> bool:
    """Whether the lock is free. Raises OSError if there is none."""
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
