"""The batches of one ingress: claims those that no ingress has, and runs them until they end or it does.

A batch is claimed for some seconds at a time, so that of a dead ingress another one takes it over. Knows no HTTP.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from app.interface.generate.reception import Reception, Work
from app.interface.request import errors
from app.interface.request.errors import ApiError
from app.interface.users.batches.answering import LineAnswers
from app.interface.users.batches.running import BatchRun
from app.interface.users.batches.sealed import BatchTexts
from app.interface.users.gate import AccountsGate
from app.messages.accounts import AccountsError
from app.messages.batches import ClaimedBatch
from app.settings.accounts import BatchSettings

_LOOK_S: Final = 1.0
"""How often batches are looked for: a lost ingress' are soon taken over."""
_MOST_RUNNING: Final = 64
_CLAIMED_AT_ONCE: Final = 4
"""Other ingresses look as often, and should have some too."""
_WARN_PERIOD_S: Final = 60.0


class BatchRunner:
    """Runs batches while its ingress does."""

    def __init__(
        self, gate: AccountsGate, reception: Reception, works: Mapping[str, Work[Any]], settings: BatchSettings
    ) -> None:
        """works: the endpoints by path."""
        self._gate = gate
        self._answers = LineAnswers(gate, reception, works)
        self._settings = settings
        self._most_line_bytes = reception.service.settings.max_body_bytes
        self._slots = asyncio.Semaphore(settings.lines_at_once)
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()
        self._warned_s = -_WARN_PERIOD_S

    def look(self, batch_id: str | None = None) -> None:
        """Looks for batches at once, or whether this one was cancelled."""
        if batch_id is None:
            self._news.set()
        elif batch_id in self._runs:
            self._runs[batch_id][0].look()

    async def run(self) -> None:
        """Runs batches until cancelled; then gives them back."""
        try:
            while True:
                self._news.clear()
                await self._claim()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _LOOK_S)
        finally:
            tasks = [task for _, task in self._runs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _claim(self) -> None:
        room = min(_CLAIMED_AT_ONCE, _MOST_RUNNING - len(self._runs))
        if room <= 0:
            return
        try:
            for claimed in await self._gate.batches.claim_batches(room):
                await self._begin(claimed)
        except Exception as error:  # the accounts are lost or being replaced, or of another version
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._warned_s + _WARN_PERIOD_S:
                self._warned_s = now_s
                errors.logger.warning("no batches can be claimed: %s", type(error).__qualname__)

    async def _begin(self, claimed: ClaimedBatch) -> None:
        batch_id = claimed.batch.id
        if batch_id in self._runs:  # this ingress stood still for longer than its lease
            before = self._runs.pop(batch_id)[1]
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        try:
            identity = await self._gate.identify(claimed.secret)
            held = BatchTexts(self._gate.batches, identity, claimed.secret).claimed(claimed)
        except (AccountsError, ApiError) as error:  # revoked just now, or damaged
            errors.logger.warning("batch %s does not run: %s", batch_id, type(error).__qualname__)
            return
        run = BatchRun(
            held,
            self._answers,
            identity,
            claimed.secret,
            slots=self._slots,
            lines_at_once=self._settings.lines_at_once,
            most_lines=self._settings.lines,
            most_line_bytes=self._most_line_bytes,
        )
        # In a context of its own: Serve cancels calls that were made in the context of a request that has ended.
        task = asyncio.create_task(run.run(), context=Context())
        self._runs[batch_id] = run, task
        task.add_done_callback(lambda done: self._over(batch_id, done))

    def _over(self, batch_id: str, task: "asyncio.Task[None]") -> None:
        if batch_id in self._runs and self._runs[batch_id][1] is task:
            del self._runs[batch_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            errors.logger.error("a batch broke: %s", type(error).__qualname__)
