"""Workers that share cores take turns: while one computes a step, the others wait.

Threads of two steps at the same time on the same cores would wait for each other's barriers. Two locks make the turns
fair: who has one lock waits for the other, so a worker that wants the next step too comes after it.
"""

import fcntl
from hashlib import blake2b
from pathlib import Path
from types import TracebackType

from app.workers.numa import Slot


class CoreTurns:
    """A context in which no other worker of the same cores computes."""

    def __init__(self, folder: Path, slot: Slot) -> None:
        """folder: shared by the machine's workers. Those of the same slot take turns."""
        name = blake2b(repr(slot.cpus).encode(), digest_size=8).hexdigest()
        self._next = (folder / f"{name}.next.lock").open("w")
        self._turn = (folder / f"{name}.turn.lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        fcntl.flock(self._next, fcntl.LOCK_UN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the locks up. Idempotent."""
        self._next.close()
        self._turn.close()
