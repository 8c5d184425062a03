"""A folder that appears whole or not at all, and replaces an older one in one step.

It is filled under a hidden name beside its place. A new name is a rename; an existing folder and the new one swap their
names (`exchange`), so that a process that is killed at any point leaves the old folder or the new one in place. Where
the file system can't swap, the old folder is renamed to NAME.replaced-XXXX first: a process that is killed between the
two renames leaves it there, visible and whole, and nothing of ours ever removes it.

Leaving early, by an error, SIGINT or SIGTERM, removes the new folder and keeps the old one in its place; what a killed
process left under hidden names is removed by the next one. Does not know what is in a folder.
"""

import fcntl
import glob
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from quant.errors import OutputError
from quant.files.exchange import exchange


@contextmanager
def atomic_folder(out: Path, *, force: bool, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields a temporary folder that becomes `out` when the block ends well.

    force: an existing `out` is replaced, but only if it is empty or `replaceable` says so.

    Raises:
        OutputError: `out` exists, or its parent can't be written, or the folder can't be put in its place.
    """
    _check_place(out, force, replaceable)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(out)
        temporary = _hidden_folder(out)
    except OSError as error:
        raise OutputError(f"{out}: can't be made: {error.filename}: {error.strerror}") from error
    with _sigterm_raises():
        lock = os.open(temporary, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield temporary
            temporary.chmod(0o755)
            _sync(temporary)
            _check_place(out, force, replaceable)
            _move_into_place(temporary, out)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            os.close(lock)


def _check_place(out: Path, force: bool, replaceable: Callable[[Path], bool]) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise OutputError(f"{out}: exists already; give another place, or --force to replace it")
    if not out.is_dir() or out.is_symlink() or (any(out.iterdir()) and not replaceable(out)):
        raise OutputError(f"{out}: is not a converted model; it is not replaced")


def _move_into_place(temporary: Path, out: Path) -> None:
    """Renames `temporary` to `out` and removes the old `out`, once the names are on the disk."""
    try:
        if not out.exists():
            temporary.rename(out)
            replaced = None
        elif exchange(temporary, out):
            replaced = temporary
        else:
            replaced = _rename_twice(temporary, out)
        _sync(out.parent)
    except OSError as error:
        raise OutputError(f"{out}: can't be put in its place: {error.strerror}") from error
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def _rename_twice(temporary: Path, out: Path) -> Path:
    """Replaces `out` where folders can't be swapped; returns the old folder's hidden name.

    An error or a signal between the two renames restores the old folder's name.
    """
    aside = Path(tempfile.mkdtemp(prefix=f"{out.name}.replaced-", dir=out.parent))
    try:
        out.rename(aside)
        temporary.rename(out)
        hidden = _hidden_folder(out)
        aside.rename(hidden)
    except BaseException:
        if not out.exists():
            aside.rename(out)
        else:
            shutil.rmtree(aside, ignore_errors=True)  # empty, or the replaced old folder
        raise
    return hidden


def _hidden_folder(out: Path) -> Path:
    """Makes an empty folder beside `out`, under a name that `_remove_stale` recognizes."""
    return Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))


def _remove_stale(out: Path) -> None:
    """Removes folders that killed processes left: a live process holds a lock on its folder."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.partial-*"):
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turns SIGTERM into SystemExit while the block runs, so that its clean-up runs too (main thread)."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
