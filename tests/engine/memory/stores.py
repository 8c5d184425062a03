"""A page store in this process' memory, which answers as the test wants: at once, late, never, or wrongly."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.messages.memory import MemoryGrant, PageName, SaveOutcome
from tests.app.memory.pages import FINGERPRINT

U8 = NDArray[np.uint8]


class DictStore:
    """A `PageStore` with one thread; several engines may use it one after the other.

    held: names of calls ("find", "load", "save") that wait until the test calls `let`.
    fails: names of calls that fail.
    """

    def __init__(self, page_bytes: int, pages: dict[tuple[bytes, bytes], bytes] | None = None) -> None:
        self.fingerprint = FINGERPRINT
        self.page_bytes = page_bytes
        self.pages = {} if pages is None else pages
        self.held: set[str] = set()
        self.fails: set[str] = set()
        self.missing: set[int] = set()
        """Indices of pages that are found, but then can't be loaded."""
        self.paced: list[bool] = []
        """Of each page that was to be saved."""
        self.calls: dict[str, int] = defaultdict(int)
        self.threads = 1
        self._work: deque[tuple[str, Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def find(self, grant: MemoryGrant, pages: Sequence[PageName], done: Callable[[int], None]) -> None:
        def work() -> None:
            there = [self._key(grant, page) in self.pages for page in pages]
            done(0 if "find" in self.fails else next((i for i, each in enumerate(there) if not each), len(there)))

        self._add("find", work)

    def load(
        self,
        grant: MemoryGrant,
        pages: Sequence[PageName],
        put: Callable[[int, U8], bool],
        done: Callable[[int, bool], None],
    ) -> None:
        def work(index: int, page: PageName) -> None:
            data = None if page.index in self.missing else self.pages.get(self._key(grant, page))
            if data is None or "load" in self.fails:
                done(index, False)
                return
            put(index, np.frombuffer(data, np.uint8).copy())
            done(index, True)

        for index, page in enumerate(pages):
            self._add("load", lambda index=index, page=page: work(index, page))  # type: ignore[misc]

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
        def work() -> None:
            out = np.zeros(self.page_bytes, np.uint8)
            if not fetch(out) or "save" in self.fails:
                done("failed")
                return
            known = self._key(grant, page) in self.pages
            self.pages[self._key(grant, page)] = out.tobytes()
            done("kept" if known else "saved")

        self.paced.append(paced)
        self._add("save", work)

    def let(self, *calls: str) -> None:
        """Lets these calls, held until now, go on."""
        with self._changed:
            self.held -= set(calls)
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 60), self.calls

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self.held.clear()
            self._changed.notify_all()
        self._thread.join()

    def _key(self, grant: MemoryGrant, page: PageName) -> tuple[bytes, bytes]:
        return grant.conversation_key_id, page.digest

    def _add(self, name: str, work: Callable[[], None]) -> None:
        with self._changed:
            self.calls[name] += 1
            self._work.append((name, work))
            self._changed.notify_all()

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        return next((item for item in self._work if item[0] not in self.held), None)

    def _main(self) -> None:
        while True:
            with self._changed:
                while (item := self._next()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
                self._work.remove(item)
            item[1]()
            with self._changed:
                self._changed.notify_all()


def gathered(runner: Any, page: int) -> bytes:
    out = np.zeros(runner.gathered_page_bytes, np.uint8)
    runner.gather_page(page, out)
    return out.tobytes()
