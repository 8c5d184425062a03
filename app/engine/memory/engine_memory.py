"""Saved KV: pages are loaded before prompts are computed, and saved after answers, so that they outlive the engine.

`Engine` has one if it was given a page store. Knows nothing of requests' events, arrays or steps.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from app.engine.memory.loads import PageLoads, Restore
from app.engine.memory.page_store import PageStore
from app.engine.memory.saves import PageSaves, Save
from app.engine.model_runner import ModelRunner
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceState
from app.messages.failures import EngineStoppedError
from app.messages.memory import SavedPages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The engine's half of the `memory.*` settings."""

    save: Save = "idle"
    save_after_s: float = 30.0
    restore: Restore = "auto"
    min_tokens: int = 64


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Counters since the engine's start."""

    restored_tokens: int
    """Prompt tokens that were loaded instead of computed."""
    missed_deadlines: int
    """Loads that took too long; the rest of their tokens was computed."""
    saved_pages: int
    lost_pages: int
    """Pages that were evicted before they could be saved."""


class EngineMemory:
    """Loads and saves KV pages. Only the methods that return futures may be called on other threads."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        store: PageStore,
        options: MemoryOptions,
        *,
        post: Callable[[Callable[[], None]], bool],
        seconds_per_token: Callable[[], float],
        computing: Callable[[], bool],
        on_clear: Callable[[str], None] | None = None,
    ) -> None:
        """Raises ValueError for a store of another model, and for a model whose pages can't be saved.

        post(call): schedules a call on the engine's thread before its next step; returns False if that thread has
            ended.
        seconds_per_token: measured time of prefill; 0: not known yet.
        computing: whether there are requests.
        on_clear: called with the owner whose pages are removed from memory, and again when what ran then has ended.
        """
        if scheduler.limits.groups.windowed:
            raise ValueError("page_store: pages of a model with page groups can't be saved")
        if scheduler.limits.state_pages:
            raise ValueError(
                "page_store: a model with recurrent states goes on only where its states are, and they can't be saved"
            )
        if store.page_bytes != runner.gathered_page_bytes:
            raise ValueError(f"store: its pages have {store.page_bytes} bytes, not {runner.gathered_page_bytes}")

        def call_later(call: Callable[[], None]) -> None:
            post(call)

        self._post = post
        self._computing = computing
        self._on_clear = on_clear
        self._running: set[SequenceState] = set()
        self._left: set[SequenceState] = set()  # sequences whose user left while they ran
        self.loads = PageLoads(
            scheduler,
            store,
            scatter=runner.scatter_page,
            post=call_later,
            seconds_per_token=seconds_per_token,
            restore=options.restore,
            min_tokens=options.min_tokens,
        )
        self.saves = PageSaves(
            scheduler.pool,
            store,
            gather=runner.gather_page,
            clear=runner.clear_page,
            post=call_later,
            when=options.save,
            after_s=options.save_after_s,
        )
        self._page_tokens = scheduler.limits.page_tokens

    # --- any thread -------------------------------------------------------------------------------------------------

    def flush(self, owner: str | None) -> "Future[SavedPages]":
        """Saves one user's pages now, or everybody's if `owner` is None; raises EngineStoppedError in the future."""
        return self._ask(lambda future: self.saves.flush(owner, future))

    def clear(self, owner: str) -> "Future[int]":
        """Removes a user's pages from memory without saving them.

        The future's result is their number; raises as `flush`.
        """
        return self._ask(lambda future: future.set_result(self._clear(owner)))

    def drop(self, owner: str, key_id: bytes | None) -> "Future[None]":
        """Removes a user's pages from memory; nothing of the conversation with that key, or of all, is saved any more.

        The future has its result when no page is being saved any more. Raises as `flush`.
        """

        def drop(future: "Future[None]") -> None:
            self._clear(owner)
            self.saves.drop(owner, key_id, future)

        return self._ask(drop)

    def _ask(self, answer: Callable[["Future[T]"], None]) -> "Future[T]":
        return asked(self._post, answer)

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all loads and saves, because the engine has ended: its pages are neither read nor written any more."""
        self.saves.close()

    def submitted(self, sequence: SequenceState) -> None:
        """Marks the conversation as active."""
        if sequence.grant is not None:
            self._running.add(sequence)
            self.saves.used(sequence.grant)

    def names_of(self, sequence: SequenceState) -> list[bytes]:
        """Returns the digests of the full pages. Call it before the scheduler removes the sequence."""
        if sequence.grant is None or sequence.chain is None:
            return []
        full = min(sequence.computed, sequence.length) // self._page_tokens
        return [sequence.chain.digest(index) for index in range(full)]

    def ended(self, sequence: SequenceState, names: list[bytes]) -> None:
        """Queues the pages for saving. Call it after the scheduler has removed the sequence."""
        grant = sequence.grant
        if grant is None:
            return
        self._running.discard(sequence)
        if sequence in self._left:
            self._left.remove(sequence)
            self.saves.remove(names)
            if self._on_clear is not None:
                self._on_clear(grant.owner)
        else:
            self.saves.ended(grant, names)

    def advance(self) -> None:
        """Ends loads that take too long and hands over pages to save. Call it before each step."""
        self.loads.expire()
        self.saves.advance(computing=self._computing())

    def give_way(self, running: Sequence[SequenceState]) -> bool:
        """Releases pages that are being saved, if the scheduler found none for `running`; returns whether it helped."""
        needs_pages = any(not sequence.loading for sequence in running)
        return needs_pages and self.saves.give_up_held()

    def wait_s(self) -> float | None:
        """How long the idle engine may wait for a call, in seconds; None: without limit."""
        return min((wait for wait in (self.loads.wait_s(), self.saves.wait_s()) if wait is not None), default=None)

    def statistics(self) -> MemoryStatistics:
        return MemoryStatistics(
            self.loads.restored_tokens, self.loads.missed_deadlines, self.saves.saved_pages, self.saves.lost_pages
        )

    def _clear(self, owner: str) -> int:
        self._left.update(sequence for sequence in self._running if _owner_of(sequence) == owner)
        if self._on_clear is not None:
            self._on_clear(owner)
        return self.saves.clear(owner)


def asked(post: Callable[[Callable[[], None]], bool], answer: Callable[["Future[T]"], None]) -> "Future[T]":
    """Calls `answer` on the engine's thread with the future whose result it will set, now or later.

    post: as in EngineMemory. The future raises EngineStoppedError if that thread has ended.
    """
    future: Future[T] = Future()

    def begin() -> None:
        if future.set_running_or_notify_cancel():  # it can't be cancelled any more
            answer(future)

    if not post(begin):
        future.set_exception(EngineStoppedError("the engine has ended"))
    return future


def _owner_of(sequence: SequenceState) -> str | None:
    return None if sequence.grant is None else sequence.grant.owner
