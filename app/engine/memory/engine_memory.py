"""An engine's memory that outlives it: what is loaded before prompts are computed, and saved after answers.

`Engine` has one where it was given a page store. Knows nothing of requests' events, arrays or steps.
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
    """Since the engine's start."""

    restored_tokens: int
    """Prompt tokens that were loaded instead of computed."""
    missed_deadlines: int
    """Loads that took too long, so that the rest was computed."""
    saved_pages: int
    lost_pages: int
    """Pages that were used for something else before they could be saved."""


class EngineMemory:
    """Loads and saves. The engine's thread, but for the three calls that return futures."""

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
    ) -> None:
        """post(call): makes the engine's thread call it before its next step; False: it never will.

        seconds_per_token: of computing prompts; 0: not known yet. computing: whether there are requests.

        Raises ValueError for a store of another model.
        """
        if store.page_bytes != runner.gathered_page_bytes:
            raise ValueError(f"store: its pages have {store.page_bytes} bytes, not {runner.gathered_page_bytes}")

        def call_later(call: Callable[[], None]) -> None:
            post(call)

        self._post = post
        self._computing = computing
        self._running: set[SequenceState] = set()
        self._left: set[SequenceState] = set()  # those whose user left while they ran
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
        """Saves a user's pages now, or everybody's. The future raises EngineStoppedError if the engine has ended."""
        return self._ask(lambda future: self.saves.flush(owner, future))

    def clear(self, owner: str) -> "Future[int]":
        """Removes a user's pages from memory, without saving them; the future gets how many. Raises as `flush`."""
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
        """A future that `answer` gives its result, now or later, on the engine's thread."""
        future: Future[T] = Future()

        def begin() -> None:
            if future.set_running_or_notify_cancel():  # from here on it can't be cancelled
                answer(future)

        if not self._post(begin):
            future.set_exception(EngineStoppedError("the engine has ended"))
        return future

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The engine has ended, and all of its requests: nothing is read from its pages or written to them any more."""
        self.saves.close()

    def submitted(self, sequence: SequenceState) -> None:
        """A request begins."""
        if sequence.grant is not None:
            self._running.add(sequence)
            self.saves.used(sequence.grant)

    def names_of(self, sequence: SequenceState) -> list[bytes]:
        """The digests of its full pages; to be asked before the scheduler removes it."""
        if sequence.grant is None or sequence.chain is None:
            return []
        full = min(sequence.computed, sequence.length) // self._page_tokens
        return [sequence.chain.digest(index) for index in range(full)]

    def ended(self, sequence: SequenceState, names: list[bytes]) -> None:
        """The scheduler has removed it."""
        grant = sequence.grant
        if grant is None:
            return
        self._running.discard(sequence)
        if sequence in self._left:
            self._left.remove(sequence)
            self.saves.remove(names)
        else:
            self.saves.ended(grant, names)

    def advance(self) -> None:
        """Before each step: ends loads that take too long, and hands over pages to save."""
        self.loads.expire()
        self.saves.advance(computing=self._computing())

    def give_way(self, running: Sequence[SequenceState]) -> bool:
        """Nothing could be planned for these sequences: whether there are pages for them now that were being saved."""
        needs_pages = any(not sequence.loading for sequence in running)
        return needs_pages and self.saves.give_up_held()

    def wait_s(self) -> float | None:
        """How long the engine may wait for a call, if it has nothing to do."""
        return min((wait for wait in (self.loads.wait_s(), self.saves.wait_s()) if wait is not None), default=None)

    def statistics(self) -> MemoryStatistics:
        """Counts."""
        return MemoryStatistics(
            self.loads.restored_tokens, self.loads.missed_deadlines, self.saves.saved_pages, self.saves.lost_pages
        )

    def _clear(self, owner: str) -> int:
        self._left.update(sequence for sequence in self._running if _owner_of(sequence) == owner)
        return self.saves.clear(owner)


def _owner_of(sequence: SequenceState) -> str | None:
    return None if sequence.grant is None else sequence.grant.owner
