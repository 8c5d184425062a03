"""How the accounts service answers calls: database work in one thread, Refusals instead of errors.

It wakes the ingresses that wait for changes. Knows no method of the service.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.accounts.accounts import Accounts
from app.messages.accounts import AccountsError, Refusal

Result = TypeVar("Result")


class Answering:
    """The base of the service's parts: the database thread and the signal of changes."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._database = ThreadPoolExecutor(1, "accounts")
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def _answer(
        self, work: Callable[[], Result], *, undo: Callable[[Result], None] | None = None
    ) -> Result | Refusal:
        """Runs `work` in the database thread and returns its result, or the Refusal of an AccountsError.

        undo: takes the result back if the caller is cancelled, even though the thread may still finish the work.
        """
        results: list[Result] = []

        def kept() -> Result:
            results.append(work())
            return results[0]

        def undone() -> None:
            for result in results:
                if undo is not None:
                    undo(result)

        try:
            return await self._in_database(kept)
        except AccountsError as error:
            return error.refusal
        except asyncio.CancelledError:
            if undo is not None:
                self._later(undone)
            raise

    async def _in_database(self, work: Callable[[], Result]) -> Result:
        before = self._position()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._database, work)
        finally:
            if self._position() != before:
                self._news.set()
                self._news = asyncio.Event()

    def _position(self) -> tuple[int, int]:
        """Changes when an ingress that waits may have something to do."""
        return self._accounts.store.changes.position, self._accounts.stored_batches.secrets.sightings

    def _later(self, work: Callable[[], None]) -> None:
        task = asyncio.create_task(self._in_database(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
