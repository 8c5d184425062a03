"""Answers that go on without their clients, and what has come of each, for clients that come back to it.

Those of one ingress. It knows neither accounts nor HTTP; how an answer is stored is its keeper's to say.
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

KEPT_S = 60.0
"""How long the events of an answer that has ended are there for clients that come back."""
KEPT_BYTES = 64 << 20
"""Of the events of those that have ended, together; then those that ended first are found no more."""
MOST_OF_ONE = 16
"""Answers of one owner that run at the same time."""


class RunningKeeper(Protocol):
    """Stores an answer that goes on without its client."""

    @property
    def owner(self) -> str:
        """The id of the user whose answer it is."""

    @property
    def conversation_id(self) -> str | None:
        """Of the stored conversation that it belongs to."""

    async def begin(self, response: ResponseObject) -> None:
        """Stores it as one that is being written. What this raises is the answer to its request."""

    async def began(self) -> None:
        """A worker has it: what it answers is stored. If that fails it is stored with the end."""

    async def complete(self, response: ResponseObject) -> None:
        """Stores it as it has ended, whichever way. What this raises makes it a failed one."""

    async def give_up(self) -> None:
        """Its client has been told of a failure before anything was written: nothing of it is stored."""

    def ended(self) -> None:
        """Nothing more comes of it."""


class RunningAnswer:
    """One of them."""

    def __init__(
        self,
        answer: StreamedAnswer[ResponseEvents],
        keeper: RunningKeeper,
        as_api_error: Callable[[Exception], ApiError],
        *,
        is_awaited: bool,
    ) -> None:
        """Nothing happens before `start`. is_awaited: whether its client waits for it to begin, and calls `begun`."""
        self.owner = keeper.owner
        self.conversation_id = keeper.conversation_id
        self.keeper = keeper
        self._deltas = answer.deltas
        self._writer = answer.writer
        self._as_api_error = as_api_error
        self._events: list[bytes] = []
        """By their sequence numbers."""
        self._begins = asyncio.get_running_loop().create_future()
        """Done when the worker has begun; a failure before that is its exception, if anybody waits for it."""
        self._is_awaited = is_awaited
        self._is_cancelled = self._is_ending = self._is_stored = False
        self._asking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """Begins to write; the task ends when all is stored."""
        self._put(self._writer.begin())
        # In its own context: Serve cancels the calls that were made in that of a request whose client has gone.
        self._task = asyncio.create_task(self._write(), context=Context())
        return self._task

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._task is not None and self._task.done()

    @property
    def size_bytes(self) -> int:
        """Of its events."""
        return sum(map(len, self._events))

    def so_far(self) -> ResponseObject:
        """The response as it is now. It has not ended before its end is stored: a client would not find it."""
        response = self._writer.so_far("in_progress" if self._begins.done() else "queued")
        if self._is_stored or response.status in ("queued", "in_progress"):
            return response
        return response.model_copy(update={"status": "in_progress", "completed_at": None, "usage": None})

    def body(self) -> bytes:
        """The response as it is now, as JSON."""
        return self.so_far().model_dump_json().encode()

    async def begun(self) -> None:
        """Returns when the worker has begun. Raises what the worker raises before that."""
        try:
            await asyncio.shield(self._begins)
        finally:
            self._is_awaited = False

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Server-sent events from the one after that number until the last; all that are there go out in one piece."""
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
        """Ends it with what it has; returns when that is stored."""
        if self._task is None or self._task.done():
            return
        await asyncio.sleep(0)  # a task that has not begun would end without a word
        if not (self._is_cancelled or self._is_ending):
            self._is_cancelled = True
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _write(self) -> None:
        try:
            await self._written()
        finally:
            self._notify()
            self.keeper.ended()
            del self.keeper, self._as_api_error  # and with them all that was asked

    async def _written(self) -> None:
        writer = self._writer
        try:
            async with aclosing(self._deltas) as deltas:
                async for batch in deltas:
                    self._begin()
                    self._put(writer.add(batch))
            await self._asked()
            self._is_ending = True
            await self.keeper.complete(writer.so_far("incomplete"))
            self._is_stored = True
            self._put(writer.end())
        except asyncio.CancelledError:
            self._begin()
            await self._store(writer.cancel())
        except Exception as error:
            if not self._begins.done() and self._is_awaited:
                self._begins.set_exception(error)
                self._begins.exception()  # its client may have gone
                await self.keeper.give_up()
                return
            self._begin()
            await self._store(writer.fail(self._as_api_error(error)))

    async def _asked(self) -> None:
        """Waits until what it answers is stored."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def _add_question(self) -> None:
        try:
            await self.keeper.began()
        except Exception as error:
            errors.logger.warning("a question was not stored before its answer: %s", type(error).__qualname__)

    async def _store(self, last: bytes) -> None:
        """last: the events after which nothing comes; clients hear of the end when it is stored."""
        try:
            await self._asked()
            await self.keeper.complete(self._writer.so_far("incomplete"))
        except Exception as error:
            errors.logger.warning("the end of an answer was not stored: %s", type(error).__qualname__)
        finally:
            self._is_stored = True
            self._put(last)

    def _begin(self) -> None:
        if not self._begins.done():
            self._begins.set_result(None)
            self._asking = asyncio.create_task(self._add_question())

    def _put(self, data: bytes) -> None:
        self._events += [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RunningAnswers:
    """Those of one ingress, by their ids. An id that somebody else shows is not found."""

    def __init__(self, most: int) -> None:
        """most: how many may run at the same time."""
        self._most = most
        self._answers: dict[str, RunningAnswer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended_bytes: dict[str, int] = {}
        """Of those that have ended, in the order of their ends."""

    def find(self, response_id: str, owner: str) -> RunningAnswer | None:
        """One that runs, or that has ended a short time ago."""
        found = self._answers.get(response_id)
        return found if found is not None and found.owner == owner else None

    async def start(self, response_id: str, answer: RunningAnswer) -> None:
        """Stores it as open, then lets it run. Raises ApiError (429), and what the keeper raises."""
        self._check_room(answer.owner)
        self._answers[response_id] = answer
        try:
            await answer.keeper.begin(answer.so_far())
        except BaseException:
            del self._answers[response_id]
            raise
        task = answer.start()
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(done, response_id))

    def forget(self, response_id: str) -> None:
        """One that has ended is found no more."""
        self._answers.pop(response_id, None)
        self._ended_bytes.pop(response_id, None)

    async def cancel_all(self, owner: str, conversation_id: str | None = None) -> None:
        """Ends those of an owner, or of one conversation of the owner's; they are found no more."""
        for response_id, one in [*self._answers.items()]:
            if one.owner == owner and conversation_id in (None, one.conversation_id):
                await one.cancel()
                self.forget(response_id)

    async def close(self) -> None:
        """Ends all of them; what they have is stored."""
        await asyncio.gather(*(one.cancel() for one in self._answers.values()))

    def _check_room(self, owner: str) -> None:
        running = [one for one in self._answers.values() if not one.is_over]
        if len(running) >= self._most or sum(one.owner == owner for one in running) >= MOST_OF_ONE:
            message = "Too many answers run in the background. Try again when one has ended."
            raise ApiError(429, message, type="rate_limit_error", code="too_many_background_responses")

    def _over(self, task: "asyncio.Task[None]", response_id: str) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            errors.logger.error("an answer in the background broke: %s", type(error).__qualname__)
        if response_id not in self._answers:
            return
        self._ended_bytes[response_id] = self._answers[response_id].size_bytes
        while sum(self._ended_bytes.values()) > KEPT_BYTES:
            self.forget(next(iter(self._ended_bytes)))
        asyncio.get_running_loop().call_later(KEPT_S, self.forget, response_id)
