"""Which models of this machine are awake, and the memory that they take together: each worker has a file for its model.

The file is locked while the model is awake, and the kernel releases the lock when the process ends, however it ends.
Its time is that of the last request. A worker that needs memory asks others to put their models to sleep, the one
unused for longest first, with a datagram to the Unix socket beside the other's file.
"""

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from app.messages.failures import QueueFullError
from app.settings.worker import SleepSettings
from app.workers.machine_memory import NoRoomError

ASLEEP, IN_USE = b"asleep", b"in use"
"""The answers of a worker that is asked."""
_LOOK_S: Final = 0.02
_ANSWER_S: Final = 30.0
"""How long a worker may take to answer: it may save its users' pages first."""


@dataclass(frozen=True, slots=True)
class AwakeModel:
    """Another worker's model that is awake."""

    name: str
    bytes: int
    """The most memory that it takes."""
    used_ns: int
    """Unix nanoseconds of its last request."""
    path: Path
    """Its file."""


class AwakeModels:
    """A worker's view of all models of the machine, and the place of its own among them."""

    def __init__(self, folder: Path, name: str, needed_bytes: int, most_bytes: int) -> None:
        """Starts asleep.

        folder: shared by all workers of the machine. needed_bytes: the most memory that the model takes. most_bytes:
        the most that all models which are awake may take together.
        """
        self._folder = folder
        self._name = name
        self._needed_bytes = needed_bytes
        self._most_bytes = most_bytes
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(2)}.awake"
        self._lock: IO[str] | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def socket(self) -> Path:
        """Where others ask this worker to put its model to sleep."""
        return self._path.with_suffix(".ask")

    def claim(self, timeout_s: float | None) -> None:
        """Makes the model awake once there is memory for it. Blocks meanwhile, and asks others to give theirs back.

        timeout_s: None: at once and whatever others have, for a model that never sleeps. Raises QueueFullError after
        that time, and NoRoomError if there can't ever be enough.
        """
        if timeout_s is not None:
            check_awake(self._name, self._needed_bytes, self._most_bytes)
        deadline_s = time.monotonic() + (timeout_s or 0.0)
        while True:
            with self._only_one():
                others = self.others()
                taken = sum(other.bytes for other in others)
                if timeout_s is None or taken + self._needed_bytes <= self._most_bytes:
                    return self._enter()
            if time.monotonic() >= deadline_s:
                names = ", ".join(f"{other.name} ({other.bytes / 1e9:.1f} GB)" for other in others)
                raise QueueFullError(
                    f"The model {self._name} is asleep, and others have the memory that it needs: {names}."
                    " Try again later."
                )
            any(self._gives_way(other) for other in others)
            time.sleep(_LOOK_S)

    def used(self) -> None:
        """Notes a request."""
        if self._lock is not None:
            now_ns = time.time_ns()  # the kernel's own time of files moves in steps of 4 ms
            os.utime(self._path, ns=(now_ns, now_ns))

    def release(self) -> None:
        """Notes that the model is asleep. Idempotent."""
        if self._lock is not None:
            self._path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def others(self) -> list[AwakeModel]:
        """The other models that are awake, the one unused for longest first."""
        found = [_locked_one(path) for path in self._folder.glob("*.awake") if path != self._path]
        return sorted((one for one in found if one is not None), key=lambda one: one.used_ns)

    def _enter(self) -> None:
        lock = self._path.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        json.dump([self._name, self._needed_bytes], lock)
        lock.flush()
        self._lock = lock
        self.used()

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """Lets one process at a time look at the files and lock its own."""
        with (self._folder / "awake.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _gives_way(self, other: AwakeModel) -> bool:
        """Asks another worker to put its model to sleep; returns whether it has."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking, suppress(OSError):  # or it has ended
            asking.bind("")  # an address for the answer
            asking.settimeout(_ANSWER_S)
            asking.sendto(b"", str(other.path.with_suffix(".ask")))
            return asking.recv(len(ASLEEP)) == ASLEEP
        return False


def check_awake(name: str, needed_bytes: int, most_bytes: int) -> None:
    """Raises NoRoomError for a model that could never be awake."""
    if needed_bytes > most_bytes:
        raise NoRoomError(
            f"the model {name!r} needs {needed_bytes / 1e9:.1f} GB while it is awake, and sleep.awake_bytes allows"
            f" {most_bytes / 1e9:.1f} GB; a smaller engine.kv_memory_bytes needs less"
        )


def most_awake_bytes(sleep: SleepSettings, memory_bytes: int) -> int:
    """The most memory that models may take while they are awake. memory_bytes: the machine's."""
    return sleep.awake_bytes or memory_bytes * 9 // 10


def _locked_one(path: Path) -> AwakeModel | None:
    """The model of a file; None if nobody has locked it."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            name, needed_bytes = json.load(file)
            return AwakeModel(name, needed_bytes, os.fstat(file.fileno()).st_mtime_ns, path)
    return None
