"""Claims of a machine's cores: a slot (`app.workers.numa`) belongs to one worker, or to two for a while.

Encoders are on the cores of others, whose steps and theirs take turns (`app.workers.core_turns`). Workers whose models
may sleep share cores with each other, as most of them are idle. Two others share cores during a rolling change only:
the old one, and its successor of the same application and another version. A worker locks one of two files of each of
its cores and writes the owner there; those that share lock the first one together. The kernel releases the locks when
the process ends, however it ends.
"""

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Final

from app.workers.numa import Slot

_LOOK_S: Final = 0.2


class NoFreeCoresError(RuntimeError):
    """Every slot of this machine has a worker."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a claim."""

    application: str
    """The Serve application of the worker."""
    version: str
    """Version of the application's deployment; workers of a later deployment have another one."""
    may_share: bool
    """Whether it may share the cores of workers of another version of the application until they end."""
    sleeps: bool = False
    """Whether its model may sleep: it shares cores with all others that may, and with nobody else."""
    beside: bool = False
    """Whether it is an encoder, which has no cores of its own: it takes turns with whoever has them."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot that this process holds until `release`, or until it ends."""

    slot: Slot
    is_shared: bool
    """Whether another worker, which is about to end, has some of the cores too."""
    locks: tuple[IO[str], ...]
    """One per core, because workers of several models may divide the machine differently."""

    def release(self) -> None:
        """Releases the slot. Idempotent."""
        for lock in self.locks:
            lock.close()


def claim_slot(slots: Sequence[Slot], folder: Path, timeout_s: float, holder: Holder) -> Claim:
    """Claims the first free slot, or else the first one that can be shared; processes that share `folder` share slots.

    A holder that sleeps gets the slot that the fewest others have which sleep too.

    Waits up to `timeout_s` for one, as a worker that is being replaced takes a moment to end. Raises NoFreeCoresError
    after that.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline_s = time.monotonic() + timeout_s
    while True:
        with _only_one(folder):
            if holder.beside:
                return _beside(slots, folder)
            claim = _least_shared(slots, folder) if holder.sleeps else _first_free(slots, folder, holder)
            if claim is not None:
                return claim
        if time.monotonic() >= deadline_s:
            sizes = "" if len(slots[0].cpus) == 1 else f" of {len(slots[0].cpus)} cores"
            raise NoFreeCoresError(
                f"all {len(slots)} core slots{sizes} of this machine have a worker already, or one that has some of"
                " their cores; worker.cpus_per_worker divides a machine among workers"
            )
        time.sleep(_LOOK_S)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Lets only one process at a time look at claims and make one."""
    with (folder / "claims.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _first_free(slots: Sequence[Slot], folder: Path, holder: Holder) -> Claim | None:
    for shares in (False, True) if holder.may_share else (False,):
        for slot in slots:
            if (locks := _locked(slot, folder, holder, shares=shares)) is not None:
                return Claim(slot, shares, locks)
    return None


def _beside(slots: Sequence[Slot], folder: Path) -> Claim:
    """The slot on which the fewest encoders are. No lock of its cores is taken."""
    for number in count():
        for slot in slots:
            lock = (folder / f"cpu{slot.cpus[0]}.beside.{number}.lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return Claim(slot, False, (lock,))
            except BlockingIOError:
                lock.close()
    raise AssertionError("the row has no end")


def _least_shared(slots: Sequence[Slot], folder: Path) -> Claim | None:
    """The claim of a holder that sleeps; None if every slot has cores of one that does not."""
    claims: list[tuple[int, Claim]] = []
    for slot in slots:
        if (found := _locked_together(slot, folder)) is not None:
            number, locks = found
            claims.append((number, Claim(slot, False, locks)))
    claims.sort(key=lambda claim: claim[0])
    for _, claim in claims[1:]:
        claim.release()
    return claims[0][1] if claims else None


def _locked_together(slot: Slot, folder: Path) -> tuple[int, tuple[IO[str], ...]] | None:
    """Locks each core's first file together with others that sleep; also returns how many others there are."""
    locks: list[IO[str]] = []
    try:
        for cpu in slot.cpus:
            with (folder / f"cpu{cpu}.2.lock").open("a") as second:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locks.append((folder / f"cpu{cpu}.1.lock").open("a"))
            fcntl.flock(locks[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        for one in locks:
            one.close()
        return None
    for lock in locks:
        lock.truncate(0)
        json.dump(["", ""], lock)  # nobody's predecessor
        lock.flush()
    for number in count():  # the first free file of a row counts them
        lock = (folder / f"cpu{slot.cpus[0]}.shared.{number}.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number, (*locks, lock)
        except BlockingIOError:
            lock.close()
    raise AssertionError("the row has no end")


def _locked(slot: Slot, folder: Path, holder: Holder, *, shares: bool) -> tuple[IO[str], ...] | None:
    """Locks each core's file; None if another worker has a core, or with `shares` one that may not be shared."""
    locks: list[IO[str]] = []
    for cpu in slot.cpus:
        lock = _lock_of(cpu, folder, holder, shares=shares)
        if lock is None:
            for one in locks:
                one.close()
            return None
        locks.append(lock)
    for lock in locks:
        lock.truncate(0)
        json.dump([holder.application, holder.version], lock)
        lock.flush()
    return tuple(locks)


def _lock_of(cpu: int, folder: Path, holder: Holder, *, shares: bool) -> IO[str] | None:
    free: list[IO[str]] = []
    gives_way = True
    for place in (1, 2):
        lock: IO[str] = (folder / f"cpu{cpu}.{place}.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(lock)
        except BlockingIOError:
            gives_way = gives_way and shares and _is_predecessor(lock, holder)
            lock.close()
    mine = free.pop() if free and gives_way else None
    for lock in free:
        lock.close()
    return mine


def _is_predecessor(lock: IO[str], holder: Holder) -> bool:
    """Whether the file's worker belongs to another version of the same application."""
    lock.seek(0)
    application, version = json.load(lock)
    return bool(application == holder.application and version != holder.version)
