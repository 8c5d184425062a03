"""The threads of the page store: what they hand on, in which order, and what a bad disk costs."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.memory import disk
from app.memory.io_threads import SAVE_PAUSE_S, FolderStore, StoreCounts
from app.messages.memory import PageName
from tests.app.memory.pages import (
    FILE_BYTES,
    PAGE_BYTES,
    PAGE_TOKENS,
    contents_of,
    files_in,
    grant_for,
    id_of,
    open_folder,
    page_of,
    path_of,
    read,
    write,
)

U8 = NDArray[np.uint8]
ADA = grant_for("ada")
PAGES = [page_of("text", index) for index in range(8)]
TIMEOUT_S = 60


class Asked:
    """Collects what a store answers."""

    def __init__(self, store: FolderStore) -> None:
        self.store = store
        self.order: list[str] = []
        self.found: list[int] = []
        self.put: dict[int, bytes] = {}
        self.loaded: dict[int, bool] = {}
        self.saved: list[str] = []
        self._changed = threading.Condition()

    def _note(self, name: str, note: Callable[[], object]) -> None:
        with self._changed:
            note()
            self.order.append(name)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), self.order

    def find(self, pages: list[PageName]) -> int:
        before = len(self.found)
        self.store.find(ADA, pages, lambda count: self._note("find", lambda: self.found.append(count)))
        self.wait(lambda: len(self.found) > before)
        return self.found[-1]

    def load(self, pages: list[PageName], most: int = 100) -> None:
        self.put, self.loaded = {}, {}

        def put(index: int, page: U8) -> bool:
            self.put[index] = page.tobytes()
            return len(self.put) < most

        self.store.load(
            ADA, pages, put, lambda index, ok: self._note("load", lambda: self.loaded.__setitem__(index, ok))
        )

    def all_loaded(self, pages: list[PageName], most: int = 100) -> list[int]:
        self.load(pages, most)
        self.wait(lambda: len(self.loaded) == len(pages))
        return [index for index, ok in sorted(self.loaded.items()) if ok]

    def save(
        self,
        page: PageName,
        *,
        durable: bool = False,
        paced: bool = False,
        fetch: Callable[[U8], bool] | None = None,
    ) -> None:
        def fill(out: U8) -> bool:
            out[:] = np.frombuffer(contents_of(id_of("ada", "text", page.index)), np.uint8)
            return True

        self.store.save(
            ADA,
            page,
            fetch or fill,
            lambda outcome: self._note("save", lambda: self.saved.append(outcome)),
            durable=durable,
            paced=paced,
        )

    def all_saved(self, pages: list[PageName], **options: Any) -> list[str]:
        before = len(self.saved)
        for page in pages:
            self.save(page, **options)
        self.wait(lambda: len(self.saved) == before + len(pages))
        return self.saved[before:]


class Clock:
    """Seconds, set by the test."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def asked(tmp_path: Path, clock: Clock) -> Iterator[Asked]:
    store = FolderStore(open_folder(tmp_path), page_bytes=PAGE_BYTES, page_tokens=PAGE_TOKENS, threads=2, now_s=clock)
    yield Asked(store)
    store.close()


def test_saved_found_and_loaded(asked: Asked, tmp_path: Path) -> None:
    assert asked.find(PAGES) == 0
    assert asked.all_saved(PAGES[:5], durable=True) == ["saved"] * 5
    assert asked.find(PAGES) == 5
    assert asked.all_loaded(PAGES[:5]) == [0, 1, 2, 3, 4]
    assert asked.put == {index: contents_of(id_of("ada", "text", index)) for index in range(5)}
    assert asked.all_saved(PAGES[:5]) == ["kept"] * 5
    counts = asked.store.counts
    assert (counts.saved_pages, counts.loaded_pages, counts.loaded_bytes) == (5, 5, 5 * FILE_BYTES)
    assert len(files_in(tmp_path)) == 5


def test_a_missing_a_damaged_and_a_foreign_page_are_not_handed_on(asked: Asked, tmp_path: Path) -> None:
    asked.all_saved(PAGES)
    path_of(tmp_path, id_of("ada", "text", 6)).unlink()
    damaged = path_of(tmp_path, id_of("ada", "text", 4))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert 6 not in asked.all_loaded([PAGES[6]])
    assert asked.all_loaded([PAGES[4]]) == []
    assert asked.put == {}
    assert not damaged.exists()
    assert asked.store.counts == StoreCounts(
        missing_pages=1, damaged_pages=1, saved_pages=8, saved_bytes=8 * FILE_BYTES
    )


def test_after_a_missing_page_the_rest_is_not_read(asked: Asked, tmp_path: Path) -> None:
    asked.all_saved(PAGES)
    path_of(tmp_path, id_of("ada", "text", 0)).unlink()
    for _ in range(50):  # the thread with the missing page may be held up by a busy machine
        loaded = asked.all_loaded(PAGES)
        assert 0 not in loaded
        if len(loaded) <= 2:
            break
    assert len(loaded) <= 2, "those that the other thread had begun"
    assert asked.all_loaded(PAGES[1:], most=1)[:1] == [0]
    assert len(asked.put) <= 3


def test_a_file_that_this_process_has_not_seen_is_written_again(asked: Asked, tmp_path: Path) -> None:
    """It may be damaged: who computed the page knows better."""
    path = path_of(tmp_path, id_of("ada", "text", 0))
    write(open_folder(tmp_path), id_of("ada", "text", 0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert asked.all_saved(PAGES[:1]) == ["saved"]
    assert read(open_folder(tmp_path), id_of("ada", "text", 0)) == contents_of(id_of("ada", "text", 0))
    path.unlink()
    assert asked.all_saved(PAGES[:1]) == ["saved"], "it was removed meanwhile"


def test_a_page_that_can_not_be_fetched_is_not_written(asked: Asked, tmp_path: Path) -> None:
    def gone(out: U8) -> bool:
        out[:] = 1
        return False

    def breaks(out: U8) -> bool:
        raise RuntimeError("a caller's mistake")

    assert asked.all_saved(PAGES[:1], fetch=gone) == ["failed"]
    assert asked.all_saved(PAGES[:1], fetch=breaks) == ["failed"]
    assert files_in(tmp_path) == []
    assert asked.all_saved(PAGES) == ["saved"] * 8, "its threads are still there"


def test_after_a_write_that_failed_nothing_is_written_for_a_while(
    asked: Asked, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.all_saved(PAGES[:2])
    tried = []

    def full(*_: object) -> None:
        tried.append(1)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "write_all", full)
    assert asked.all_saved(PAGES[2:3]) == ["failed"]
    assert asked.all_saved(PAGES[3:]) == ["failed"] * 5
    assert len(tried) == 1
    monkeypatch.undo()
    clock.now_s += SAVE_PAUSE_S - 1
    assert asked.all_saved(PAGES[3:], durable=True) == ["failed"] * 5
    clock.now_s += 2
    assert asked.all_saved(PAGES) == ["saved"] * 8, "two went to make room"


def test_a_disk_that_fails_is_as_if_nothing_was_there(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.all_saved(PAGES)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "read_into", broken)
    assert asked.all_loaded(PAGES) == []
    monkeypatch.undo()
    (tmp_path / "v1").rename(tmp_path / "gone")
    assert asked.find(PAGES) == 0
    assert asked.all_loaded(PAGES) == []
    assert asked.store.counts.failed_reads >= 2
    (tmp_path / "gone").rename(tmp_path / "v1")
    assert asked.all_loaded(PAGES) == list(range(8))


def test_loading_goes_before_saving(tmp_path: Path) -> None:
    store = FolderStore(open_folder(tmp_path), page_bytes=PAGE_BYTES, page_tokens=PAGE_TOKENS, threads=1)
    asked = Asked(store)
    asked.all_saved(PAGES)
    began, go = threading.Event(), threading.Event()
    asked.order.clear()

    def slow(out: U8) -> bool:
        began.set()
        go.wait(TIMEOUT_S)
        return False

    asked.save(page_of("other"), fetch=slow)
    assert began.wait(TIMEOUT_S)
    for index in range(3):
        asked.save(page_of("more", index), fetch=lambda out: False)
    asked.load(PAGES[:3])
    go.set()
    asked.wait(lambda: len(asked.order) == 7)
    assert asked.order == ["save", *["load"] * 3, *["save"] * 3]
    store.close()


def test_saving_keeps_to_its_rate_where_it_may_take_its_time(tmp_path: Path, clock: Clock) -> None:
    store = FolderStore(
        open_folder(tmp_path),
        page_bytes=PAGE_BYTES,
        page_tokens=PAGE_TOKENS,
        threads=1,
        write_bytes_per_s=FILE_BYTES / 10,
        now_s=clock,
    )
    asked = Asked(store)
    for page in PAGES[:4]:
        asked.save(page, paced=True)
    for done in range(1, 4):
        asked.wait(lambda done=done: len(asked.saved) == done)  # type: ignore[misc]
        assert len(files_in(tmp_path)) == done
        clock.now_s += 9.9
        assert asked.find(PAGES[:1]) == 1, "reading does not wait"
        assert len(asked.saved) == done
        clock.now_s += 0.2
        assert asked.find(PAGES[:1]) == 1
    asked.wait(lambda: len(asked.saved) == 4)
    assert asked.all_saved(PAGES[4:]) == ["saved"] * 4
    store.close()


def test_pages_past_their_lifetime_are_swept_by_themselves(tmp_path: Path) -> None:
    write(open_folder(tmp_path), id_of("ada", "text"))
    store = FolderStore(
        open_folder(tmp_path, ttl_s=0.0, now_s=lambda: 1e10),
        page_bytes=PAGE_BYTES,
        page_tokens=PAGE_TOKENS,
        threads=1,
    )
    asked = Asked(store)
    asked.find(PAGES)
    asked.find(PAGES)
    store.close()
    assert files_in(tmp_path) == []
