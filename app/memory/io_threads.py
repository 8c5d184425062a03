"""The page store of an engine: threads that read, decrypt, encrypt and write, so that no engine waits for a disk.

Each thread has staging memory of its own, in which it reads and decrypts a file; only a page with a valid tag is handed
on. Loading goes before saving, and saving is rate-limited. After a failed write, nothing is saved for a while, so that
a full or dead disk does not slow down answers.

Knows neither sequences nor the engine's pages: callers hand over functions that fetch and put them.
"""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.memory.folder import PageFolder, QuotaError
from app.memory.page_file import OtherFormatError, PageFileError, PageId
from app.messages.memory import MemoryGrant, PageName, SaveOutcome

logger = logging.getLogger(__name__)

SAVE_PAUSE_S: Final = 60.0
"""How long nothing is saved after a write has failed."""
_SWEEP_PERIOD_S: Final = 3600.0
_MOST_KNOWN: Final = 1 << 17
"""Most remembered files that this process has written or read. A file that it has not seen itself may be damaged."""

U8 = NDArray[np.uint8]


@dataclass(slots=True)
class StoreCounts:
    """Counters since the start."""

    loaded_pages: int = 0
    loaded_bytes: int = 0
    missing_pages: int = 0
    """Pages that `find` found but that were gone when they were to be loaded."""
    damaged_pages: int = 0
    """Files that did not open, and were removed."""
    failed_reads: int = 0
    saved_pages: int = 0
    saved_bytes: int = 0
    failed_saves: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Find:
    grant: MemoryGrant
    pages: Sequence[PageName]
    done: Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Load:
    """A run of pages to load; each thread takes the next one."""

    grant: MemoryGrant
    pages: Sequence[PageName]
    put: Callable[[int, U8], bool]
    done: Callable[[int, bool], None]
    next: int = 0
    wanted: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Save:
    grant: MemoryGrant
    page: PageName
    fetch: Callable[[U8], bool]
    done: Callable[[SaveOutcome], None]
    durable: bool
    paced: bool


class FolderStore:
    """A `PageStore` over a `PageFolder`. Thread-safe."""

    def __init__(
        self,
        folder: PageFolder,
        *,
        page_bytes: int,
        page_tokens: int,
        threads: int,
        write_bytes_per_s: float | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts its threads.

        page_bytes, page_tokens: size of a gathered page. write_bytes_per_s: rate limit of paced saves; None: no limit.
        """
        self.fingerprint = folder.fingerprint
        self.page_bytes = page_bytes
        self.threads = threads
        self.counts = StoreCounts()
        self.folder = folder
        self._page_tokens = page_tokens
        self._write_bytes_per_s = write_bytes_per_s
        self._now_s = now_s
        self._changed = threading.Condition()
        self._reads: deque[_Find | _Load] = deque()
        self._saves: deque[_Save] = deque()
        self._next_save_s = self._next_sweep_s = self._paused_until_s = 0.0
        self._closed = False
        self._known: set[bytes] = set()
        self._threads = [
            threading.Thread(target=self._main, name=f"redoubt-memory-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    # --- any thread -------------------------------------------------------------------------------------------------

    def find(self, grant: MemoryGrant, pages: Sequence[PageName], done: Callable[[int], None]) -> None:
        self._add_read(_Find(grant, pages, done))

    def load(
        self,
        grant: MemoryGrant,
        pages: Sequence[PageName],
        put: Callable[[int, U8], bool],
        done: Callable[[int, bool], None],
    ) -> None:
        self._add_read(_Load(grant, pages, put, done))

    def save(
        self,
        grant: MemoryGrant,
        page: PageName,
        fetch: Callable[[U8], bool],
        done: Callable[[SaveOutcome], None],
        *,
        durable: bool,
        paced: bool,
    ) -> None:
        with self._changed:
            self._saves.append(_Save(grant, page, fetch, done, durable, paced))
            self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends the threads after their current work, but leaves one behind that a dead disk blocks. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0))

    def _add_read(self, read: _Find | _Load) -> None:
        with self._changed:
            self._reads.append(read)
            self._changed.notify_all()

    # --- its threads ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        page = np.empty(self.page_bytes, np.uint8)
        file = np.empty(self.folder.file_bytes, np.uint8)
        while (work := self._take()) is not None:
            try:
                work(page, file)
            except Exception:  # a caller's function has failed; the thread goes on
                logger.exception("a thread of the saved pages has failed")

    def _take(self) -> Callable[[U8, U8], None] | None:
        """Waits for the next piece of work; None: the thread must end."""
        with self._changed:
            while not self._closed:
                if (work := self._next()) is not None:
                    return work
                until_s = min(self._next_sweep_s, self._next_save_s) if self._saves else self._next_sweep_s
                self._changed.wait(max(until_s - self._now_s(), 0.001))
            return None

    def _next(self) -> Callable[[U8, U8], None] | None:
        """Returns the next piece of work, if any. The caller holds the lock."""
        if self._reads:
            read = self._reads[0]
            if isinstance(read, _Find):
                self._reads.popleft()
                return lambda page, file: self._do_find(read)
            index = read.next
            read.next += 1
            if read.next == len(read.pages):
                self._reads.popleft()
            return lambda page, file: self._do_load(read, index, page, file)
        now_s = self._now_s()
        if self._saves:
            save = self._saves[0]
            if now_s < self._paused_until_s:
                self._saves.popleft()
                return lambda page, file: save.done("failed")
            if not save.paced or self._next_save_s <= now_s:
                self._saves.popleft()
                if self._write_bytes_per_s is not None:
                    self._next_save_s = now_s + self.folder.file_bytes / self._write_bytes_per_s
                return lambda page, file: self._do_save(save, page, file)
        if self._next_sweep_s <= now_s:
            self._next_sweep_s = now_s + _SWEEP_PERIOD_S
            return lambda page, file: self._do_sweep()
        return None

    def _id(self, grant: MemoryGrant, page: PageName) -> PageId:
        return PageId.of(grant, page, self.fingerprint, self._page_tokens)

    def _do_find(self, find: _Find) -> None:
        count = 0
        try:
            for page in find.pages:
                if not self.folder.has(self._id(find.grant, page)):
                    break
                count += 1
        except OSError as error:
            self._log("looked up", error)
        finally:
            find.done(count)

    def _do_load(self, load: _Load, index: int, page: U8, file: U8) -> None:
        ok = False
        try:
            if load.wanted:
                ok = self._read(load, index, page, file)
        finally:
            if not ok:
                load.wanted = False
            load.done(index, ok)

    def _read(self, load: _Load, index: int, page: U8, file: U8) -> bool:
        try:
            page_id = self._id(load.grant, load.pages[index])
            found = self.folder.read(page_id, file.data, page.data)
        except OtherFormatError:
            return False
        except PageFileError as error:
            logger.warning("a saved page was not used: %s", error)
            self._count(damaged_pages=1)
            return False
        except OSError as error:
            self._log("read", error)
            self._count(failed_reads=1)
            return False
        if not found:
            self._count(missing_pages=1)
            return False
        self._remember(page_id)
        self._count(loaded_pages=1, loaded_bytes=self.folder.file_bytes)
        load.wanted = load.put(index, page) and load.wanted
        return True

    def _do_save(self, save: _Save, page: U8, file: U8) -> None:
        outcome: SaveOutcome = "failed"
        try:
            outcome = self._save(save, page, file)
        finally:
            save.done(outcome)

    def _save(self, save: _Save, page: U8, file: U8) -> SaveOutcome:
        page_id = self._id(save.grant, save.page)
        try:
            if page_id.name in self._known and self.folder.touch(page_id):
                return "kept"
            if not save.fetch(page):
                return "failed"
            self.folder.write(page_id, page.data, file.data, durable=save.durable, quota_bytes=save.grant.quota_bytes)
        except QuotaError as error:
            self._log("saved", error)
        except OSError as error:
            self._log("saved", error)
            with self._changed:
                self._paused_until_s = self._now_s() + SAVE_PAUSE_S
        else:
            self._remember(page_id)
            self._count(saved_pages=1, saved_bytes=self.folder.file_bytes)
            return "saved"
        self._count(failed_saves=1)
        return "failed"

    def _remember(self, page_id: PageId) -> None:
        """Remembers that the page's file was whole: if it still exists later, it need not be written again."""
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(page_id.name)

    def _do_sweep(self) -> None:
        try:
            self.folder.sweep()
        except OSError as error:
            self._log("swept", error)

    def _count(self, **more: int) -> None:
        with self._changed:
            for name, count in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)

    def _log(self, what: str, error: OSError) -> None:
        reason = errno.errorcode.get(error.errno or 0, str(error.errno))
        logger.warning("saved pages can't be %s: %s (%s)", what, error.strerror or "error", reason)
