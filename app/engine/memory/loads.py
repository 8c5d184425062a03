"""Loads saved pages into the KV cache for sequences that would compute them otherwise.

A load belongs to one sequence, which is not scheduled meanwhile. First the store says how many of its next pages it
has; then free pages are allocated for them, and the store's threads fill one after the other. When the load ends, the
sequence keeps what has come up to the first missing page, and computes the rest. A load ends when all pages have come,
when one has failed, at its deadline, or with its sequence. After that nothing is written to its pages, however late a
disk answers: whoever writes a page holds the load's lock.

Sequences that need a page which another one is loading wait for that load, and then find the page in the prefix cache.

Knows neither files nor keys, nor what a page contains.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

from app.engine.memory.page_store import GatheredPage, PageStore
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceState
from app.messages.memory import PageName

Restore = Literal["auto", "always", "never"]

_DEADLINE: Final = 2.0
"""A load may take this many times as long as computing its tokens is expected to."""
_LEAST_DEADLINE_S: Final = 0.05
_ALWAYS_DEADLINE_S: Final = 10.0
"""The shortest deadline with restore "always"."""
_UNKNOWN_SECONDS_PER_TOKEN: Final = 0.01
"""Assumed until a prompt was computed: what a large model takes."""
_RATE: Final = 0.3
"""Weight of a new measurement in the running mean."""
_TRY_AGAIN_S: Final = 60.0
"""How long a store that was too slow is not used before it is measured again."""


class _Load:
    """One sequence's load. Its lock is held while a page is written."""

    __slots__ = (
        "_end",
        "_lock",
        "_on_ended",
        "_put",
        "_reported",
        "_states",
        "_stopped",
        "began_s",
        "deadline_s",
        "followers",
        "names",
        "pages",
        "sequence",
    )

    def __init__(
        self, sequence: SequenceState, names: Sequence[PageName], put: Callable[[int, GatheredPage], None]
    ) -> None:
        self.sequence = sequence
        self.names = names
        self.pages: list[int] = []
        self.followers: list[SequenceState] = []
        self.began_s = self.deadline_s = 0.0
        self._put = put
        self._lock = threading.Lock()
        self._states: list[bool | None] = []  # for each page, whether it was loaded; None: pending
        self._end = 0  # pages from this index on are not waited for
        self._stopped = self._reported = False
        self._on_ended: Callable[[], None] = lambda: None

    def begin(self, pages: list[int], on_ended: Callable[[], None]) -> None:
        """Sets the pages to write to. `on_ended` is called once, on any thread, when nothing more will come."""
        self.pages = pages
        self._states = [None] * len(pages)
        self._end = len(pages)
        self._on_ended = on_ended

    def put(self, index: int, page: GatheredPage) -> bool:
        """Writes one page, on a thread of the store. Returns whether further pages are wanted."""
        with self._lock:
            if self._stopped:
                return False
            self._put(self.pages[index], page)
            self._states[index] = True
            return True

    def done(self, index: int, ok: bool) -> None:
        """Records whether a page was loaded, on a thread of the store."""
        with self._lock:
            if not ok:
                self._states[index] = False
                self._end = min(self._end, index)
            ended = not self._reported and None not in self._states[: self._end]
            self._reported = self._reported or ended
        if ended:
            self._on_ended()

    def stop(self) -> int:
        """Ends the load; nothing is written any more. Returns how many pages have come, from the first on."""
        with self._lock:
            self._stopped = True
            return next((i for i, state in enumerate(self._states) if not state), len(self._states))


class PageLoads:
    """A `PageLoader`. Only the engine's thread uses it."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: PageStore,
        *,
        scatter: Callable[[int, GatheredPage], None],
        post: Callable[[Callable[[], None]], None],
        seconds_per_token: Callable[[], float],
        restore: Restore,
        min_tokens: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Becomes the scheduler's loader.

        scatter(page, gathered): writes a page, on a thread of the store.
        post(call): schedules a call on the engine's thread before its next step.
        seconds_per_token: measured time of prefill; 0: not known yet.
        min_tokens: fewer tokens than this are computed, not loaded.
        """
        self.restored_tokens = self.missed_deadlines = 0
        self._scheduler = scheduler
        self._store = store
        self._scatter = scatter
        self._post = post
        self._seconds_per_token = seconds_per_token
        self.restore: Restore = restore
        """Applies to the loads that begin after it is set. Any thread may set it, unless it is "never"."""
        self._min_pages = max(-(-min_tokens // scheduler.limits.page_tokens), 1)
        self._now_s = now_s
        self._loads: dict[SequenceState, _Load] = {}
        self._by_first: dict[bytes, _Load] = {}
        self._following: dict[SequenceState, _Load] = {}
        self._seconds_per_page = 0.0  # measured time of loading
        self._measured_s: float | None = None
        if restore != "never":
            scheduler.loader = self

    # --- the scheduler's ----------------------------------------------------------------------------------------------

    def begin(self, sequence: SequenceState, end: int) -> bool:
        assert sequence.chain is not None
        assert sequence.grant is not None
        first = len(sequence.pages)
        if (other := self._by_first.get(sequence.chain.digest(first))) is not None:
            other.followers.append(sequence)
            self._following[sequence] = other
            return True
        if sequence.asked_loader or sequence.group is not None or not self._is_worth(end - first):
            return False
        sequence.asked_loader = True
        names = [PageName(sequence.chain.digest(index), index) for index in range(first, end)]
        load = _Load(sequence, names, self._scatter)
        load.began_s = self._now_s()
        load.deadline_s = load.began_s + self._deadline_s(len(names))
        self._loads[sequence] = self._by_first[names[0].digest] = load
        self._store.find(sequence.grant, names, lambda count: self._post(lambda: self._found(load, count)))
        return True

    def cancel(self, sequence: SequenceState) -> None:
        if (followed := self._following.pop(sequence, None)) is not None:
            followed.followers.remove(sequence)
            return
        load = self._loads[sequence]
        load.stop()
        self._forget(load)
        self._scheduler.pool.release(reversed(load.pages))

    # --- the engine's -------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Ends loads that take too long."""
        now_s = self._now_s()
        for load in [load for load in self._loads.values() if load.deadline_s <= now_s]:
            self.missed_deadlines += 1
            self._end(load, measured=True)

    def wait_s(self) -> float | None:
        """Seconds until `expire` has something to do; None: nothing is being loaded."""
        first_s = min((load.deadline_s for load in self._loads.values()), default=None)
        return None if first_s is None else max(first_s - self._now_s(), 0.0)

    def _found(self, load: _Load, count: int) -> None:
        if self._loads.get(load.sequence) is not load:
            return
        count = min(count, self._scheduler.pool.free_count)
        if count < self._min_pages or not self._is_worth(count):
            self._end(load, measured=False)
            return
        assert load.sequence.grant is not None
        load.deadline_s = load.began_s + self._deadline_s(count)
        load.begin(self._scheduler.pool.allocate(count), lambda: self._post(lambda: self._came(load)))
        self._store.load(load.sequence.grant, load.names[:count], load.put, load.done)

    def _came(self, load: _Load) -> None:
        if self._loads.get(load.sequence) is load:
            self._end(load, measured=True)

    def _end(self, load: _Load, *, measured: bool) -> None:
        loaded = load.stop()
        self._forget(load)
        if measured:
            self._measure((self._now_s() - load.began_s) / max(loaded, 1))
        self.restored_tokens += loaded * self._scheduler.limits.page_tokens
        self._scheduler.end_load(load.sequence, load.pages, loaded)

    def _forget(self, load: _Load) -> None:
        del self._loads[load.sequence]
        del self._by_first[load.names[0].digest]
        for sequence in load.followers:
            sequence.loading = False
            del self._following[sequence]
        load.followers = []

    # --- whether it is worth it ---------------------------------------------------------------------------------------

    def _computing_s(self, pages: int) -> float:
        tokens = pages * self._scheduler.limits.page_tokens
        return tokens * (self._seconds_per_token() or _UNKNOWN_SECONDS_PER_TOKEN)

    def _deadline_s(self, pages: int) -> float:
        least_s = _ALWAYS_DEADLINE_S if self.restore == "always" else _LEAST_DEADLINE_S
        return max(_DEADLINE * self._computing_s(pages), least_s)

    def _is_worth(self, pages: int) -> bool:
        """Whether loading `pages` pages is expected to take less time than computing them."""
        if pages < self._min_pages:
            return False
        if self.restore == "always" or self._is_stale():
            return True
        return pages * self._seconds_per_page < self._computing_s(pages)

    def _measure(self, seconds_per_page: float) -> None:
        if self._is_stale():
            self._seconds_per_page = seconds_per_page
        self._seconds_per_page += _RATE * (seconds_per_page - self._seconds_per_page)
        self._measured_s = self._now_s()

    def _is_stale(self) -> bool:
        """Whether the loading time was not measured yet, or too long ago to count."""
        return self._measured_s is None or self._now_s() - self._measured_s > _TRY_AGAIN_S
