"""Runs one batch that this ingress has claimed: checks its lines, answers them, stores each result as it comes.

Whoever has the batch after a loss reads from the accounts which lines have results, and goes on with the others. Knows
neither which batches there are nor how a line is answered.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from app.interface.request import errors
from app.interface.request.errors import ApiError
from app.interface.users.batches.answering import LineAnswers, NotNowError
from app.interface.users.batches.lines import Line, check_lines, lines_of, request_of
from app.interface.users.batches.results import expired
from app.interface.users.batches.sealed import HeldBatch, Piece
from app.messages.accounts import AccountsError, Identity
from app.messages.batches import LAST_SEQ, LEASE_S, OPEN_STATES, LineResult

_KEEP_PERIOD_S: Final = LEASE_S / 4
_MOST_RESULTS, _MOST_RESULT_BYTES = 64, 1 << 20
"""Of one call that stores results, but for a single large one."""
_LAST_BYTES = 256 << 10
_ROOM_PERIOD_S = 10.0
"""How often results are offered again while their user's files have no room."""
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
"""Between calls to accounts that do not answer."""
_GIVE_BACK_S = 2.0
_GONE: Final = ("conflict", "not_found", "password_change_required", *errors.INVALID_CREDENTIAL)
"""Refusals after which another ingress has the batch, or nobody can go on with it here."""

Made = TypeVar("Made")


@dataclass(slots=True)
class _Waiting:
    """A result on its way to the accounts."""

    result: LineResult
    is_stored: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BatchRun:
    """A batch in this ingress."""

    def __init__(
        self,
        held: HeldBatch,
        answers: LineAnswers,
        identity: Identity,
        secret: str,
        *,
        slots: asyncio.Semaphore,
        lines_at_once: int,
        most_lines: int,
        most_line_bytes: int,
    ) -> None:
        """slots: of all batches of this ingress, held while a line is at the workers. lines_at_once: of this one."""
        self._held = held
        self._answers = answers
        self._identity = identity
        self._secret = secret
        self._slots = slots
        self._lines_at_once = lines_at_once
        self._most_lines = most_lines
        self._most_line_bytes = most_line_bytes
        self._resume_s = 0.0
        """The time of the loop until which no line begins."""
        self._asked = asyncio.Event()
        """Set when the batch may have changed at the accounts."""
        self._stopped = asyncio.Event()
        """Set when no more lines are to run: the batch was cancelled, or its time is over."""
        self._waiting: list[_Waiting] = []
        self._has_results = asyncio.Event()

    def look(self) -> None:
        """Asks the accounts at once whether the batch was cancelled."""
        self._asked.set()

    async def run(self) -> None:
        """Runs until the batch has ended, or another ingress has it. Raises nothing but CancelledError."""
        keeping = asyncio.create_task(self._keep())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (keeping, working):
                task.cancel()
            await asyncio.gather(keeping, working, return_exceptions=True)
            error = next((task.exception() for task in (working, keeping) if not task.cancelled()), None)
            if error is not None and not _is_gone(error):
                await self._break(error)
            elif self._held.batch.stored.state in OPEN_STATES:
                await self._give_back()

    # --- the lease

    async def _keep(self) -> None:
        """Prolongs the lease. Raises AccountsError when the batch is not this ingress' any more."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _KEEP_PERIOD_S)
            self._asked.clear()
            try:
                await self._held.keep()
            except AccountsError as error:
                if _is_gone(error):
                    raise
            if self._held.batch.stored.state == "cancelling" or self._is_too_late():
                self._stopped.set()

    async def _give_back(self) -> None:
        """Lets another ingress go on at once, with the results that there are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S):
                if self._waiting:
                    with suppress(AccountsError, ApiError):
                        await self._held.add([one.result for one in self._waiting[:_MOST_RESULTS]])
                with suppress(AccountsError):
                    await self._held.leave()

    async def _break(self, error: BaseException) -> None:
        """Ends a batch that a bug or a damaged record keeps from going on; no other ingress would get further."""
        frames = "".join(traceback.format_tb(error.__traceback__))
        errors.logger.error("batch %s failed: %s\n%s", self._held.id, type(error).__qualname__, frames)
        message = f"The server failed on this batch (id {self._held.id})."
        with suppress(AccountsError, ApiError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S):
                fault = {"code": "internal_error", "line": None, "message": message, "param": None}
                await self._held.end("failed", [fault])

    def _is_too_late(self) -> bool:
        return time.time() >= self._held.batch.stored.expires

    # --- the work

    async def _work(self) -> None:
        held = self._held
        if held.batch.stored.state == "validating" and not self._is_too_late():
            await self._check()
        if held.batch.stored.state == "in_progress" and not self._is_too_late():
            await self._run_lines()
        if held.batch.stored.state in OPEN_STATES:
            await self._end()

    async def _check(self) -> None:
        """Checks the file. The batch fails, or is in progress, unless it was cancelled meanwhile."""
        held, endpoint = self._held, str(self._held.batch.asked["endpoint"])
        async with aclosing(self._lines()) as lines:
            checking = check_lines(lines, endpoint, most_lines=self._most_lines, most_bytes=self._most_line_bytes)
            found = await self._unless_stopped(checking)
        if found is None:
            return
        if not found.faults:
            refusal = await self._unless_stopped(self._model_refusal(found.model))
            if self._stopped.is_set():
                return
            if refusal is not None:
                found.fault(refusal.code or "", refusal.message, found.first, "body.model")
        if found.faults:
            await self._insist(lambda: held.end("failed", found.faults))
        else:
            await self._insist(lambda: held.start(found.total, found.model))

    async def _model_refusal(self, model: str | None) -> ApiError | None:
        while True:
            try:
                return await self._answers.check_model(model)
            except NotNowError as error:
                await asyncio.sleep(error.wait_s)

    async def _run_lines(self) -> None:
        """Runs all lines that have no result, until they have, or the batch is stopped."""
        await self._unless_stopped(self._all_lines())
        while self._waiting:  # of lines that ended just before it was stopped
            try:
                await self._store_some(waits_for_room=False)
            except AccountsError as error:
                if error.refusal.code != "insufficient_quota":
                    raise
                self._waiting.clear()

    async def _all_lines(self) -> None:
        """Begins the lines in order, some at a time; returns when all results are stored."""
        done = await self._insist(self._held.done_lines)
        own = asyncio.Semaphore(self._lines_at_once)

        async def run(number: int, text: bytes) -> None:
            try:
                await self._run_line(number, text)
            finally:
                own.release()

        async with asyncio.TaskGroup() as group:
            storing = group.create_task(self._store_results())
            async with asyncio.TaskGroup() as running, aclosing(self._lines()) as lines:
                async for line in lines:
                    if line.number in done or line.text is None:
                        continue
                    await self._until_resumed()
                    await own.acquire()
                    running.create_task(run(line.number, line.text))
            storing.cancel()

    async def _run_line(self, number: int, text: bytes) -> None:
        """Answers a line, as often as it takes, and returns when its result is stored."""
        request = request_of(text)
        wait_s = _SHORTEST_WAIT_S
        while True:
            await self._until_resumed()
            try:
                async with self._slots:
                    endpoint = str(self._held.batch.asked["endpoint"])
                    result = await self._answers.answer(endpoint, request, self._identity, self._secret)
                break
            except NotNowError as error:
                wait_s = max(error.wait_s, min(2 * wait_s, _LONGEST_WAIT_S))
            except AccountsError as error:
                if _is_gone(error):
                    raise
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            self._resume_s = asyncio.get_running_loop().time() + wait_s
        waiting = _Waiting(self._held.result(number, result.text, is_error=result.is_error))
        self._waiting.append(waiting)
        self._has_results.set()
        await waiting.is_stored

    async def _until_resumed(self) -> None:
        """Waits while no line is to begin."""
        loop = asyncio.get_running_loop()
        while (wait_s := self._resume_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)

    # --- results

    async def _store_results(self) -> None:
        """Stores results as they come, those that came meanwhile together."""
        while True:
            await self._has_results.wait()
            self._has_results.clear()
            while self._waiting:
                await self._store_some()

    async def _store_some(self, *, waits_for_room: bool = True) -> None:
        """Stores the oldest results; waits for the accounts, and for room."""
        some, size_bytes = list[_Waiting](), 0
        for one in self._waiting[:_MOST_RESULTS]:
            size_bytes += len(one.result.sealed)
            if some and size_bytes > _MOST_RESULT_BYTES:
                break
            some.append(one)
        results = [one.result for one in some]
        await self._insist(lambda: self._held.add(results), waits_for_room=waits_for_room)
        del self._waiting[: len(some)]
        for one in some:
            if not one.is_stored.done():
                one.is_stored.set_result(None)

    # --- the end

    async def _end(self) -> None:
        """Ends a batch of which no line runs any more."""
        held = self._held
        await self._insist(held.finalize)
        stored = held.batch.stored
        if stored.state == "cancelling":
            await self._insist(lambda: held.end("cancelled"))
        elif stored.state == "finalizing" and stored.completed + stored.failed >= stored.total:
            await self._insist(lambda: held.end("completed"))
        else:
            if stored.state == "finalizing":
                await self._write_expired()
            await self._insist(lambda: held.end("expired"))

    async def _write_expired(self) -> None:
        """Writes the lines that have not run to the file of errors."""
        held, seq, texts, size_bytes = self._held, LAST_SEQ, list[bytes](), 0
        done = await self._insist(held.done_lines)

        async def write() -> None:
            result = held.result(seq, b"".join(texts), is_error=True)
            await self._insist(lambda: held.add([result]))

        async with aclosing(self._lines()) as lines:
            async for line in lines:
                if line.number in done or line.text is None:
                    continue
                texts.append(expired(request_of(line.text).custom_id))
                size_bytes += len(texts[-1])
                if size_bytes >= _LAST_BYTES:
                    await write()
                    seq, size_bytes = seq + 1, 0
                    texts.clear()
        if texts:
            await write()

    # --- what all need

    def _lines(self) -> AsyncGenerator[Line, None]:
        return lines_of(self._content(), self._most_line_bytes)

    async def _content(self) -> AsyncGenerator[bytes, None]:
        """Reads the batch's file; waits for accounts that do not answer."""
        after = -1

        async def read() -> Piece | None:
            return await self._held.input_after(after)

        while (piece := await self._insist(read)) is not None:
            after = piece.last
            yield piece.content

    async def _unless_stopped(self, work: Awaitable[Made]) -> Made | None:
        """Returns what the work does; None, and it is cancelled, if the batch is stopped before."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _insist(self, call: Callable[[], Awaitable[Made]], *, waits_for_room: bool = True) -> Made:
        """Calls the accounts until they answer, and until there is room. Raises AccountsError otherwise."""
        wait_s = _SHORTEST_WAIT_S
        while True:
            try:
                return await call()
            except AccountsError as error:
                if error.refusal.code == "insufficient_quota":
                    if not waits_for_room:
                        raise
                    wait_s = _ROOM_PERIOD_S
                elif _is_gone(error):
                    raise
                else:
                    wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            await asyncio.sleep(wait_s)


def _is_gone(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_gone(each) for each in error.exceptions)
    return isinstance(error, AccountsError) and error.refusal.code in _GONE
