"""Decides when the engine's KV pages are saved, and hands them to the store.

A page that was given a name never changes, so the store's threads copy it while the engine goes on. It is held until it
is copied; as many pages as there are threads are held at a time. Pages are saved when their chat has been idle for a
while, when a user logs out, when the service drains, and at the last moment, before they are evicted.

This also records which user owns each page, so that it can be removed from memory when the user leaves.

Knows neither files nor keys, nor what a page contains. Only the engine's thread uses it, but for the store's callbacks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import numpy as np

from app.engine.memory.page_store import GatheredPage, PageStore
from app.engine.pages.page_pool import PagePool
from app.messages.memory import MemoryGrant, PageName, SavedPages, SaveOutcome

Save = Literal["idle", "logout", "never"]
MOST_COPIES_BYTES: Final = 64 << 20
"""Most bytes of pages that were evicted before they were saved and wait as copies; at least one page. More are not
saved."""
_MOST_FORGOTTEN: Final = 1 << 16
"""Most remembered key ids of forgotten conversations, of which nothing is saved any more."""


@dataclass(slots=True, eq=False)
class _Chat:
    """One conversation's pages that wait until they may be saved."""

    grant: MemoryGrant
    due_s: float
    pages: dict[bytes, tuple[PageName, MemoryGrant]] = field(default_factory=dict)
    """Pages by digest, each with the grant of its own request, which says whether it is system prompt."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Pages of one chat that are saved together."""

    digests: list[bytes]
    left: int


@dataclass(slots=True, eq=False)
class _Flush:
    """A caller that waits until a user's pages are saved."""

    future: "Future[SavedPages]"
    left: int = 0
    saved: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Wanted:
    """A page to save. Its lock is held while it is copied."""

    grant: MemoryGrant
    name: PageName
    batch: _Batch | None = None
    durable: bool = False
    flushes: list[_Flush] = field(default_factory=list)
    page: int = -1
    """The KV page held for it; -1: none."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    given_up: bool = False
    copied: bool = False

    @property
    def key(self) -> tuple[bytes, bytes]:
        return self.name.digest, self.grant.conversation_key_id


class PageSaves:
    """The engine's pages that are to be saved, and their owners."""

    def __init__(
        self,
        pool: PagePool,
        store: PageStore,
        *,
        gather: Callable[[int, GatheredPage], None],
        clear: Callable[[int], None],
        post: Callable[[Callable[[], None]], None],
        when: Save,
        after_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """gather(page, out): copies a page, on a thread of the store or on the engine's. clear(page): overwrites it.

        post(call): schedules a call on the engine's thread before its next step.
        when: "idle": after a chat was idle for after_s seconds, and whenever `flush` is called; "logout": only then.
        """
        self.saved_pages = self.lost_pages = 0
        self._pool = pool
        self._store = store
        self._gather, self._clear = gather, clear
        self._post = post
        self._when = when
        self._after_s = after_s
        self._now_s = now_s
        self._chats: dict[tuple[str, bytes], _Chat] = {}
        self._queue: deque[_Wanted] = deque()
        self._running: set[_Wanted] = set()
        self._held: set[_Wanted] = set()
        self._copies = 0
        self._owners: dict[bytes, str] = {}  # owner of each cached page, by digest
        self._owned: dict[str, set[bytes]] = {}
        self._forgotten: dict[bytes, None] = {}  # key ids of forgotten conversations, oldest first
        self._idle_calls: list[tuple[Callable[[_Wanted], bool], Future[None]]] = []

    # --- what the engine tells ----------------------------------------------------------------------------------------

    def used(self, grant: MemoryGrant) -> None:
        """Marks a conversation as active, because a request of it has come."""
        chat = self._chats.get((grant.owner, grant.conversation_key_id))
        if chat is not None:
            chat.due_s = self._due_s()

    def ended(self, grant: MemoryGrant, digests: Sequence[bytes]) -> None:
        """Queues the full pages of an ended request, given by name in order."""
        for digest in digests:
            self._owners[digest] = grant.owner
        self._owned.setdefault(grant.owner, set()).update(digests)
        if not grant.save or self._when == "never" or not digests or grant.conversation_key_id in self._forgotten:
            return
        key = (grant.owner, grant.conversation_key_id)
        chat = self._chats.setdefault(key, _Chat(grant, 0.0))
        chat.grant, chat.due_s = grant, self._due_s()
        chat.pages.update((digest, (PageName(digest, index), grant)) for index, digest in enumerate(digests))

    def evicting(self, page: int, digest: bytes) -> None:
        """Copies a page that waits to be saved, because it is about to be evicted."""
        owner = self._owners.pop(digest, None)
        if owner is None:
            return
        self._disown(owner, digest)
        for wanted in self._take_wanted(digest):
            if self._copies >= max(MOST_COPIES_BYTES // self._store.page_bytes, 1):
                self.lost_pages += 1
                self._end(wanted, "failed")
                continue
            copy = np.empty(self._store.page_bytes, np.uint8)
            self._gather(page, copy)
            self._copies += 1
            self._hand_over(wanted, partial(_copy, copy), paced=False)  # the next copies need the room

    @property
    def wanted_pages(self) -> int:
        """Pages that are due and not saved yet."""
        return len(self._queue) + len(self._running)

    def advance(self, *, computing: bool) -> None:
        """Hands over due pages, as many at a time as the store has threads.

        computing: whether requests run, which saving should not slow down.
        """
        now_s = self._now_s()
        for key in [key for key, chat in self._chats.items() if chat.due_s <= now_s]:
            self._enqueue(self._chats.pop(key))
        while self._queue and len(self._running) < self._store.threads:
            wanted = self._queue.popleft()
            page = self._pool.find(wanted.name.digest)
            if page is None:
                self.lost_pages += 1
                self._end(wanted, "failed")
                continue
            wanted.page = page
            self._held.add(wanted)
            self._hand_over(wanted, partial(self._fetch, wanted), paced=computing and not wanted.durable)

    def wait_s(self) -> float | None:
        """Seconds until `advance` has something to do; None: nothing is to be saved, or the store will call."""
        due_s = min((chat.due_s for chat in self._chats.values()), default=float("inf"))
        return None if due_s == float("inf") else max(due_s - self._now_s(), 0.0)

    def give_up_held(self) -> bool:
        """Releases all held pages, copied or not, because a sequence needs pages. Returns whether there were any."""
        held = list(self._held)
        for wanted in held:
            with wanted.lock:
                wanted.given_up = not wanted.copied
            self._release(wanted)
        return bool(held)

    # --- what users want ----------------------------------------------------------------------------------------------

    def flush(self, owner: str | None, future: "Future[SavedPages]") -> None:
        """Saves the user's pages now, or everybody's; the future's result says what became of them."""
        flush = _Flush(future)
        for key in [key for key, chat in self._chats.items() if owner in (None, chat.grant.owner)]:
            self._enqueue(self._chats.pop(key))
        for wanted in (*self._queue, *self._running):
            if owner in (None, wanted.grant.owner):
                wanted.durable = True
                wanted.flushes.append(flush)
                flush.left += 1
        self._finish(flush)

    def clear(self, owner: str) -> int:
        """Removes the user's pages from the cache and from the save queue. Returns how many there were."""
        for key in [key for key in self._chats if key[0] == owner]:
            del self._chats[key]
        digests = self._owned.pop(owner, set())
        for digest in digests:
            del self._owners[digest]
        self.remove(digests)
        return len(digests)

    def remove(self, digests: Iterable[bytes]) -> None:
        """Removes pages from the prefix cache, and overwrites those that no sequence holds."""
        for digest in digests:
            page = self._pool.forget(digest)
            if page is not None:
                self._clear(page)

    def drop(self, owner: str, key_id: bytes | None, future: "Future[None]") -> None:
        """Stops saving the user's conversation with `key_id`, or all of them.

        The future is done once nothing is being saved.
        """

        def concerns(grant: MemoryGrant) -> bool:
            return grant.owner == owner and key_id in (None, grant.conversation_key_id, grant.shared_key_id)

        if key_id is not None:
            self._forgotten[key_id] = None  # requests that are still on their way have the key
            if len(self._forgotten) > _MOST_FORGOTTEN:
                del self._forgotten[next(iter(self._forgotten))]
        for key in [key for key, chat in self._chats.items() if concerns(chat.grant)]:
            del self._chats[key]
        for wanted in [wanted for wanted in self._queue if concerns(wanted.grant)]:
            self._queue.remove(wanted)
            self._end(wanted, "failed")
        self._idle_calls.append((lambda wanted: concerns(wanted.grant), future))
        self._answer_idle_calls()

    def close(self) -> None:
        """Ends all saving with the engine; callers that wait learn that the rest was not saved."""
        for wanted in (*self._queue, *self._running):
            for flush in wanted.flushes:
                flush.failed += 1
                flush.left -= 1
                self._finish(flush)
        self.give_up_held()
        for _, future in self._idle_calls:
            future.set_result(None)
        self._idle_calls.clear()

    # ------------------------------------------------------------------------------------------------------------------

    def _due_s(self) -> float:
        return self._now_s() + self._after_s if self._when == "idle" else float("inf")

    def _enqueue(self, chat: _Chat) -> None:
        known = {wanted.key for wanted in self._queue}
        pages = [each for each in chat.pages.values() if (each[0].digest, each[1].conversation_key_id) not in known]
        batch = _Batch([name.digest for name, _ in pages], len(pages))
        self._queue.extend(_Wanted(grant, name, batch) for name, grant in pages)

    def _take_wanted(self, digest: bytes) -> list[_Wanted]:
        """Removes and returns all save entries of that page."""
        taken = [wanted for wanted in self._queue if wanted.name.digest == digest]
        for wanted in taken:
            self._queue.remove(wanted)
        pages = [chat.pages.pop(digest) for chat in self._chats.values() if digest in chat.pages]
        return taken + [_Wanted(grant, name) for name, grant in pages]

    def _hand_over(self, wanted: _Wanted, fetch: Callable[[GatheredPage], bool], *, paced: bool) -> None:
        self._running.add(wanted)

        def done(outcome: SaveOutcome) -> None:
            self._post(lambda: self._saved(wanted, outcome))

        self._store.save(wanted.grant, wanted.name, fetch, done, durable=wanted.durable, paced=paced)

    def _fetch(self, wanted: _Wanted, out: GatheredPage) -> bool:
        """Copies the page to `out`, on a thread of the store. Returns False if it is not there any more."""
        with wanted.lock:
            if wanted.given_up:
                return False
            self._gather(wanted.page, out)
            wanted.copied = True
        self._post(lambda: self._release(wanted))
        return True

    def _saved(self, wanted: _Wanted, outcome: SaveOutcome) -> None:
        self._release(wanted)
        self._running.discard(wanted)
        if wanted.page < 0:
            self._copies -= 1
        if wanted.given_up:  # retried later, if its page is still there then
            wanted.given_up, wanted.page = False, -1
            self._queue.append(wanted)
            return
        self._end(wanted, outcome)

    def _release(self, wanted: _Wanted) -> None:
        if wanted in self._held:
            self._held.remove(wanted)
            self._pool.release([wanted.page])

    def _end(self, wanted: _Wanted, outcome: SaveOutcome) -> None:
        """Removes the entry and reports its outcome."""
        self.saved_pages += outcome == "saved"
        for flush in wanted.flushes:
            flush.left -= 1
            flush.saved += outcome != "failed"
            flush.failed += outcome == "failed"
            self._finish(flush)
        if wanted.batch is not None:
            wanted.batch.left -= 1
            if not wanted.batch.left:
                batch = wanted.batch
                self._post(lambda: self._restore_order(batch))  # the pool's listener must not use the pool
        self._answer_idle_calls()

    def _finish(self, flush: _Flush) -> None:
        if not flush.left:
            saved_bytes = flush.saved * self._store.page_bytes
            flush.future.set_result(SavedPages(flush.saved, saved_bytes, flush.failed))

    def _restore_order(self, batch: _Batch) -> None:
        """Puts the end of the text before its beginning in LRU order again, as before the pages were held."""
        for digest in reversed(batch.digests):
            page = self._pool.find(digest)
            if page is not None:
                self._pool.release([page])

    def _answer_idle_calls(self) -> None:
        waiting = self._idle_calls
        self._idle_calls = []
        for concerns, future in waiting:
            if any(concerns(wanted) for wanted in (*self._queue, *self._running)):
                self._idle_calls.append((concerns, future))
            else:
                future.set_result(None)

    def _disown(self, owner: str, digest: bytes) -> None:
        owned = self._owned[owner]
        owned.discard(digest)
        if not owned:
            del self._owned[owner]


def _copy(source: GatheredPage, out: GatheredPage) -> bool:
    out[:] = source
    return True
