"""Answers that continue without their clients, with their events for clients that reconnect.

Each ingress has its own. It knows neither accounts nor HTTP; the keeper stores the answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import Context
from typing import Protocol

from app.interface.generate.answers.answer import StreamedAnswer
from app.interface.generate.answers.responses import ResponseEvents
from app.interface.request import errors
from app.interface.request.errors import ApiError
from app.interface.wire.responses import ResponseObject
from app.running_mark import RunningMark

KEPT_S = 60.0
"""How long the events of an ended answer are kept for clients that reconnect."""
KEPT_BYTES = 64 << 20
"""The limit of the events of all ended answers; beyond it the oldest are dropped."""
MOST_OF_ONE = 16
"""The limit of concurrent answers per owner."""


class RunningKeeper(Protocol):
    """Stores an answer that continues without its client."""

    @property
    def owner(self) -> str:
        """The id of the answer's user."""

    @property
    def conversation_id(self) -> str | None:
        """The id of the stored conversation, if any."""

    async def store_open(self, response: ResponseObject) -> None:
        """Stores the response as in progress. An error raised here is the answer to the request."""

    async def store_question(self) -> None:
        """Stores the question once a worker has begun. If that fails, it is stored at the end."""

    async def complete(self, response: ResponseObject) -> None:
        """Stores the ended response. An error raised here makes the response a failed one."""

    async def discard(self) -> None:
        """Deletes the stored response: the client was told of a failure before anything was written."""

    def release(self) -> None:
        """Ends the request's metering; called last."""


class RunningAnswer:
    """An answer that continues without its client."""

    def __init__(
        self,
        answer: StreamedAnswer[ResponseEvents],
        keeper: RunningKeeper,
        as_api_error: Callable[[Exception], ApiError],
        *,
        is_awaited: bool,
    ) -> None:
        """Does nothing before `start`. is_awaited: whether the client waits in `wait_until_begun`."""
        self.owner = keeper.owner
        self.conversation_id = keeper.conversation_id
        self.keeper = keeper
        self._deltas = answer.deltas
        self._writer = answer.writer
        self._as_api_error = as_api_error
        self._events: list[bytes] = []
        """Events by sequence number."""
        self._begun = asyncio.get_running_loop().create_future()
        """Set when the worker has begun; has the exception of an earlier failure if the client waits."""
        self._is_awaited = is_awaited
        self._is_cancelled = self._is_ending = self._is_stored = False
        self._storing_question: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """Starts writing; the task ends when all is stored."""
        self._put(self._writer.begin())
        # In its own context: Serve cancels calls that were made in the context of a request whose client has gone.
        self._task = asyncio.create_task(self._write(), context=Context())
        return self._task

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def size_bytes(self) -> int:
        """The size of its events."""
        return sum(map(len, self._events))

    def so_far(self) -> ResponseObject:
        """Returns the response so far. It counts as ended only once that is stored, so that clients can find it."""
        response = self._writer.so_far("in_progress" if self._begun.done() else "queued")
        if self._is_stored or response.status in ("queued", "in_progress"):
            return response
        return response.model_copy(update={"status": "in_progress", "completed_at": None, "usage": None})

    def body(self) -> bytes:
        """Returns the response so far as JSON."""
        return self.so_far().model_dump_json().encode()

    async def wait_until_begun(self) -> None:
        """Returns when the worker has begun. Raises what the worker raises before that."""
        try:
            await asyncio.shield(self._begun)
        finally:
            self._is_awaited = False

    def end_wait(self) -> None:
        """Does not wait: from now on a failure becomes an event. Raises what the worker has raised."""
        self._is_awaited = False
        if self._begun.done():
            self._begun.result()

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yields server-sent events from number `after` + 1 until the last, joining those that are ready."""
        place = after + 1
        while True:
            changed = self._changed
            if place < len(self._events):
                yield b"".join(self._events[place:])
                place = len(self._events)
            elif self.is_over:
                return
            else:
                await changed.wait()

    async def cancel(self) -> None:
        """Ends the answer with what it has; returns when that is stored."""
        if self._task is None or self._task.done():
            return
        await asyncio.sleep(0)  # a task that has not started would end silently
        if not (self._is_cancelled or self._is_ending):
            self._is_cancelled = True
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _write(self) -> None:
        try:
            await self._written()
        finally:
            self._notify()
            self.keeper.release()
            del self.keeper, self._as_api_error  # these hold the whole request

    async def _written(self) -> None:
        writer = self._writer
        try:
            async with aclosing(self._deltas) as deltas:
                async for batch in deltas:
                    self._begin()
                    self._put(writer.add(batch))
            await self._question_stored()
            self._is_ending = True
            await self.keeper.complete(writer.so_far("incomplete"))
            self._is_stored = True
            self._put(writer.end())
        except asyncio.CancelledError:
            self._begin()
            await self._store(writer.cancel())
        except Exception as error:
            if not self._begun.done() and self._is_awaited:
                self._begun.set_exception(error)
                self._begun.exception()  # its client may have gone
                await self.keeper.discard()
                return
            self._begin()
            await self._store(writer.fail(self._as_api_error(error)))

    async def _question_stored(self) -> None:
        """Waits until the question is stored."""
        if self._storing_question is not None:
            await asyncio.wait({self._storing_question})

    async def _add_question(self) -> None:
        try:
            await self.keeper.store_question()
        except Exception as error:
            errors.logger.warning("a question was not stored before its answer: %s", type(error).__qualname__)

    async def _store(self, last: bytes) -> None:
        """last: the final events; clients get them once the end is stored."""
        try:
            await self._question_stored()
            await self.keeper.complete(self._writer.so_far("incomplete"))
        except Exception as error:
            errors.logger.warning("the end of an answer was not stored: %s", type(error).__qualname__)
        finally:
            self._is_stored = True
            self._put(last)

    def _begin(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)
            self._storing_question = asyncio.create_task(self._add_question())

    def _put(self, data: bytes) -> None:
        self._events += [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RunningAnswers:
    """The running answers of one ingress by id. Other users' ids are not found."""

    def __init__(self, most: int, mark: RunningMark) -> None:
        """most: the limit of concurrent answers. mark: set while there are any."""
        self._most = most
        self._mark = mark
        self._answers: dict[str, RunningAnswer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended_bytes: dict[str, int] = {}
        """Sizes of ended answers, oldest first."""

    def find(self, response_id: str, owner: str) -> RunningAnswer | None:
        """Returns an answer that runs or has recently ended."""
        found = self._answers.get(response_id)
        return found if found is not None and found.owner == owner else None

    async def start(self, response_id: str, answer: RunningAnswer) -> None:
        """Stores the answer as open and starts it. Raises ApiError (429), and what the keeper raises."""
        self._check_room(answer.owner)
        self._answers[response_id] = answer
        try:
            await answer.keeper.store_open(answer.so_far())
        except BaseException:
            del self._answers[response_id]
            raise
        task = answer.start()
        self._tasks.add(task)
        self._mark.set(True)
        task.add_done_callback(lambda done: self._over(done, response_id))

    def forget(self, response_id: str) -> None:
        """Drops an ended answer."""
        self._answers.pop(response_id, None)
        self._ended_bytes.pop(response_id, None)

    async def cancel_all(self, owner: str, conversation_id: str | None = None) -> None:
        """Ends and drops the answers of an owner, or of one conversation of the owner."""
        for response_id, one in [*self._answers.items()]:
            if one.owner == owner and conversation_id in (None, one.conversation_id):
                await one.cancel()
                self.forget(response_id)

    async def close(self, wait_s: float = 0.0) -> None:
        """Waits for the answers to end, so long; then ends all; what they have is stored."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=wait_s)
        await asyncio.gather(*(one.cancel() for one in self._answers.values()))

    def _check_room(self, owner: str) -> None:
        running = [one for one in self._answers.values() if not one.is_over]
        if len(running) >= self._most or sum(one.owner == owner for one in running) >= MOST_OF_ONE:
            message = "Too many answers run in the background. Try again when one has ended."
            raise ApiError(429, message, type="rate_limit_error", code="too_many_background_responses")

    def _over(self, task: "asyncio.Task[None]", response_id: str) -> None:
        self._tasks.discard(task)
        self._mark.set(bool(self._tasks))
        if not task.cancelled() and (error := task.exception()) is not None:
            errors.logger.error("an answer in the background broke: %s", type(error).__qualname__)
        if response_id not in self._answers:
            return
        self._ended_bytes[response_id] = self._answers[response_id].size_bytes
        while sum(self._ended_bytes.values()) > KEPT_BYTES:
            self.forget(next(iter(self._ended_bytes)))
        asyncio.get_running_loop().call_later(KEPT_S, self.forget, response_id)
