"""The folder of saved pages: `<root>/v1/<owner>/<model16>/<xx>/<name>.kv`.

Content-addressed and without an index: a page's path follows from its PageId, so any number of workers, on any number
of machines, share a folder without coordination. A file appears by a rename and is never changed; what a killed writer
left is swept. Nothing in the folder needs to be trusted: a file that does not open is removed and counts as missing.

A file's mtime is when its text was last used; its fraction of a second holds the page's index. Eviction over quota is
LRU, and within one text the ends go before the beginnings.

Calls block as long as the disk does, so they belong on threads that may wait (`app.memory.io_threads`). Thread-safe.
"""

import errno
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.memory import disk
from app.memory.page_file import (
    KEY_ID_BYTES,
    KEY_ID_OFFSET,
    OtherFormatError,
    PageFileError,
    PageId,
    file_bytes,
    seal,
    unseal,
)

VERSION: Final = "v1"
SUFFIX: Final = ".kv"
TEMPORARY: Final = ".tmp-"
OWNER: Final = re.compile("[0-9a-f]{32}")
_TEMPORARY_S: Final = 3600.0
"""A temporary file of this age has no writer any more."""
_RESCAN_S: Final = 300.0
"""How long a count of all files is used, while other workers write to the folder too."""
_USE_PERIOD_S: Final = 600
"""Pages used within one such period count as used at the same time."""
_EVICTED_SHARE: Final = 0.05
"""How much more than needed is evicted, as a share of the quota, so that few writes must scan for the oldest."""
_NS: Final = 1_000_000_000


class MemoryFolderError(ValueError):
    """The folder can't be used; the message names it and the remedy."""


class QuotaError(OSError):
    """A page is larger than the user's whole quota."""


@dataclass(frozen=True, slots=True)
class FolderUse:
    """The size of what is in the folder."""

    pages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Saved:
    """A page's file, as found by a scan."""

    path: Path
    owner: str
    bytes: int
    used_ns: int

    @property
    def order(self) -> tuple[int, int]:
        """Sort key for eviction, lowest first."""
        return self.used_ns // _NS // _USE_PERIOD_S, -(self.used_ns % _NS)


class PageFolder:
    """Reads, writes and removes the pages of one model; quota, lifetime and forgetting are over all models."""

    def __init__(
        self,
        root: Path,
        *,
        fingerprint: bytes,
        page_bytes: int,
        most_bytes: int,
        most_bytes_per_user: int,
        ttl_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Makes the folder where it is missing. Raises MemoryFolderError.

        page_bytes: size of a gathered page. most_bytes, most_bytes_per_user: quotas of file bytes. ttl_s: how long an
        unused page is kept, in seconds.
        """
        self.root = root
        self.fingerprint = fingerprint
        self.file_bytes = file_bytes(page_bytes)
        self._most_bytes, self._most_bytes_per_user = most_bytes, most_bytes_per_user
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._by_owner: dict[str, int] = {}  # bytes
        self._has_counted = False
        self._scanned_s: float | None = None
        if most_bytes < self.file_bytes:
            raise MemoryFolderError(
                f"memory.bytes: {most_bytes} is less than one page of this model, {self.file_bytes}"
            )
        try:
            (root / VERSION).mkdir(mode=0o700, parents=True, exist_ok=True)
            (root / VERSION).chmod(0o700)
            probe = root / VERSION / f"{TEMPORARY}{secrets.token_hex(16)}"
            probe.touch(mode=0o600)
            probe.unlink()
        except OSError as error:
            raise MemoryFolderError(
                f"memory.folder {root}: {error.strerror}; it must be a folder to write to"
            ) from error

    # --- one page -------------------------------------------------------------------------------------------------

    def has(self, page_id: PageId) -> bool:
        """Whether the page's file exists. Raises OSError for a folder that fails."""
        with self._place(page_id) as (folder, name):
            return folder is not None and disk.exists(folder, name)

    def read(self, page_id: PageId, file: memoryview, page: memoryview) -> bool:
        """Reads the page into `page`; False if there is none. `file`: room for the file, file_bytes long.

        Both buffers are written in any case; `page` is valid only after True. Raises PageFileError for a file that does
        not open, after removing it (another format's is left alone), and OSError.
        """
        with self._place(page_id) as (folder, name):
            if folder is None:
                return False
            try:
                opened = os.open(name, disk.READ_FLAGS, dir_fd=folder)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                os.unlink(name, dir_fd=folder)
                raise PageFileError("it is a link") from None
            try:
                self._read_opened(opened, page_id, file, page)
            except OtherFormatError:
                raise
            except PageFileError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(opened)
            self._mark_used(folder, name, page_id)
            return True

    def _read_opened(self, opened: int, page_id: PageId, file: memoryview, page: memoryview) -> None:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_size != self.file_bytes:
            raise PageFileError(f"it has {status.st_size} bytes, not {self.file_bytes}")
        count = disk.read_into(opened, file)
        unseal(page_id, file[:count], page)

    def touch(self, page_id: PageId) -> bool:
        """Marks the page as just used. Returns whether its file exists. Raises OSError."""
        with self._place(page_id) as (folder, name):
            if folder is None or not disk.exists(folder, name):
                return False
            self._mark_used(folder, name, page_id)
            return True

    def write(
        self,
        page_id: PageId,
        page: memoryview,
        file: memoryview,
        *,
        durable: bool = False,
        quota_bytes: int | None = None,
    ) -> None:
        """Saves the page, replacing an existing file. `file`: room for the file, file_bytes long.

        durable: returns when the file would survive a loss of power. quota_bytes: the most that this user's files take,
        in place of most_bytes_per_user. Raises QuotaError, and OSError: for a full disk (ENOSPC, EDQUOT) after the
        oldest pages were removed to make room for later ones.
        """
        owner = page_id.owner.hex()
        is_new = not self.has(page_id)
        if is_new:
            self._make_room(owner, self._most_bytes_per_user if quota_bytes is None else quota_bytes)
        seal(page_id, page, file)
        try:
            try:
                self._put(page_id, file, durable)
            except FileNotFoundError:  # another worker has just swept the empty folder
                self._put(page_id, file, durable)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                with suppress(OSError):
                    self._evict(lambda saved: True, sum(self._by_owner.values()) - self._spare_bytes())
            raise
        with self._lock:
            self._by_owner[owner] = self._by_owner.get(owner, 0) + is_new * self.file_bytes

    def _put(self, page_id: PageId, file: memoryview, durable: bool) -> None:
        with self._place(page_id, create=True) as (folder, name):
            assert folder is not None
            self._write_and_rename(folder, name, page_id, file, durable)

    def _write_and_rename(self, folder: int, name: str, page_id: PageId, file: memoryview, durable: bool) -> None:
        temporary = f"{TEMPORARY}{secrets.token_hex(16)}"
        opened = os.open(temporary, disk.CREATE_FLAGS, 0o600, dir_fd=folder)
        try:
            try:
                disk.write_all(opened, file)
                if durable:
                    os.fsync(opened)
            finally:
                os.close(opened)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        self._mark_used(folder, name, page_id)
        if durable:
            os.fsync(folder)

    def _mark_used(self, folder: int, name: str, page_id: PageId) -> None:
        used_ns = int(self._now_s()) * _NS + page_id.index
        with suppress(OSError):  # a read-only folder can still be read
            os.utime(name, ns=(used_ns, used_ns), dir_fd=folder, follow_symlinks=False)

    @contextmanager
    def _place(self, page_id: PageId, *, create: bool = False) -> Iterator[tuple[int | None, str]]:
        """Opens the page's folder, None if it is missing, and yields it with the file's name.

        Follows no link below the root.

        `v1` itself is never recreated: if it has vanished, the disk has too.
        """
        name = page_id.name.hex()
        parts = (page_id.owner.hex(), page_id.fingerprint.hex()[:16], name[:2])
        opened = [os.open(self.root / VERSION, disk.FOLDER_FLAGS)]
        try:
            for part in parts:
                if (inner := disk.enter(opened[-1], part, create=create)) is None:
                    break
                opened.append(inner)
            yield opened[-1] if len(opened) > len(parts) else None, name + SUFFIX
        finally:
            for folder in opened:
                os.close(folder)

    # --- all pages ------------------------------------------------------------------------------------------------

    def use(self, owner: str) -> FolderUse:
        """The size of the user's pages, of all models. Raises OSError, ValueError for an invalid owner."""
        saved = list(self._saved(_checked(owner)))
        return FolderUse(len(saved), sum(each.bytes for each in saved))

    def forget(self, owner: str, key_id: bytes | None = None) -> int:
        """Removes the user's pages of all models, either those sealed with that key or all. Returns their number.

        Raises OSError, ValueError for an invalid owner.
        """
        removed = removed_bytes = 0
        for saved in self._saved(_checked(owner), temporary=True):
            if (key_id is None or _key_id(saved.path) == key_id) and _unlink(saved.path):
                removed += 1
                removed_bytes += saved.bytes
        with self._lock:
            self._by_owner[owner] = max(0, self._by_owner.get(owner, 0) - removed_bytes)
            self._scanned_s = None
        _remove_empty_folders(self.root / VERSION / owner)
        return removed

    @property
    def known_bytes(self) -> int | None:
        """The size of all files as last counted, without asking the disk; None before the first count."""
        return sum(list(self._by_owner.values())) if self._has_counted else None

    def sweep(self) -> int:
        """Removes expired pages and what killed writers left, and counts the rest.

        Returns how many files were removed. Raises OSError.
        """
        now_s = self._now_s()
        removed = 0
        kept: list[_Saved] = []
        for saved in self._saved(temporary=True):
            is_temporary = saved.path.name.startswith(TEMPORARY)
            if saved.used_ns / _NS < now_s - (_TEMPORARY_S if is_temporary else self._ttl_s):
                removed += _unlink(saved.path)
            elif not is_temporary:
                kept.append(saved)
        _remove_empty_folders(self.root / VERSION, keep=True)
        with self._lock:
            self._count(kept)
            self._scanned_s = None  # others have written meanwhile: the next write counts again
        return removed

    def _spare_bytes(self) -> int:
        return max(self.file_bytes, int(self._most_bytes * _EVICTED_SHARE))

    def _make_room(self, owner: str, most_bytes: int) -> None:
        """Evicts pages until one more fits the user's quota and the total quota. Raises QuotaError, OSError."""
        if most_bytes < self.file_bytes:
            raise QuotaError(errno.EDQUOT, f"the user's quota is less than one page, {self.file_bytes} bytes")
        with self._lock:
            if self._scanned_s is None or not 0 <= self._now_s() - self._scanned_s < _RESCAN_S:
                self._count(list(self._saved()))
            own, total = self._by_owner.get(owner, 0), sum(self._by_owner.values())
        if own + self.file_bytes > most_bytes:
            spare = max(self.file_bytes, int(most_bytes * _EVICTED_SHARE))
            self._evict(lambda saved: saved.owner == owner, most_bytes - spare)
        if total + self.file_bytes > self._most_bytes:
            self._evict(lambda saved: True, self._most_bytes - self._spare_bytes())

    def _evict(self, candidate: Callable[[_Saved], bool], most_bytes: int) -> None:
        """Removes the oldest candidates until they have at most `most_bytes`. Raises OSError."""
        saved = list(self._saved())
        chosen = sorted((each for each in saved if candidate(each)), key=lambda each: each.order)
        excess = sum(each.bytes for each in chosen) - most_bytes
        gone: set[Path] = set()
        for each in chosen:
            if excess <= 0:
                break
            _unlink(each.path)
            gone.add(each.path)
            excess -= each.bytes
        with self._lock:
            self._count([each for each in saved if each.path not in gone])

    def _count(self, saved: list[_Saved]) -> None:
        """Replaces the counts by a scan's. The caller holds the lock."""
        by_owner: dict[str, int] = {}
        for each in saved:
            by_owner[each.owner] = by_owner.get(each.owner, 0) + each.bytes
        self._by_owner, self._has_counted = by_owner, True
        self._scanned_s = self._now_s()

    def _saved(self, owner: str | None = None, *, temporary: bool = False) -> Iterator[_Saved]:
        """Yields all pages, or a user's, optionally with temporary files. Raises OSError if the root can't be read."""
        top = self.root / VERSION
        owners = [entry.name for entry in _folders(top) if owner in (None, entry.name)]
        for each in owners:
            for model in _folders(top / each, missing_ok=True):
                for part in _folders(Path(model.path), missing_ok=True):
                    yield from _files(Path(part.path), each, temporary)


def _checked(owner: str) -> str:
    if not OWNER.fullmatch(owner):
        raise ValueError("owner: not 32 hex digits")
    return owner


def _folders(path: Path, *, missing_ok: bool = False) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        if missing_ok:
            return []
        raise


def _files(folder: Path, owner: str, temporary: bool) -> Iterator[_Saved]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) or (temporary and entry.name.startswith(TEMPORARY)):
                with suppress(FileNotFoundError):  # others remove files too
                    status = entry.stat(follow_symlinks=False)
                    yield _Saved(folder / entry.name, owner, status.st_size, status.st_mtime_ns)


def _key_id(path: Path) -> bytes:
    """Returns the key id in a file's header, or whatever bytes are there if the file is no page."""
    try:
        opened = os.open(path, disk.READ_FLAGS)
    except OSError:
        return b""
    try:
        return os.pread(opened, KEY_ID_BYTES, KEY_ID_OFFSET)
    finally:
        os.close(opened)


def _unlink(path: Path) -> bool:
    """Removes a file. Returns whether it existed. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _remove_empty_folders(top: Path, *, keep: bool = False) -> None:
    for path, _, _ in os.walk(top, topdown=False):
        if not (keep and path == str(top)):
            with suppress(OSError):  # not empty, or gone
                Path(path).rmdir()
