"""Turns a request body into a response: the stages that all routes with a body share.

It knows no path and no family of endpoints. Long bodies are parsed, rendered and tokenized off the event loop.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive

from app.interface.generate.answers.answer import (
    Answer,
    DetachedAnswer,
    EventWriter,
    Running,
    StreamedAnswer,
    WholeAnswer,
    events,
)
from app.interface.generate.answers.early import Early
from app.interface.generate.attached import AttachedFiles
from app.interface.generate.service import Service
from app.interface.request import errors
from app.interface.request.body import read_body
from app.interface.request.callers import Caller, caller_of
from app.interface.request.errors import ApiError
from app.interface.request.preparation import LONG_BODY_BYTES, Preparation
from app.interface.request.recent_failures import RecentFailures, request_id_of
from app.interface.request.record import RequestRecord, record_of
from app.interface.request.streaming import (
    KEEP_ALIVE,
    ClientGoneError,
    EventStream,
    LateStream,
    abandoned,
    first_of,
    until_disconnect,
)
from app.interface.wire.parse import parse
from app.messages.failures import ModelReplacedError

Body = TypeVar("Body", bound=BaseModel)
Planned = TypeVar("Planned")

_SEARCHING_S: Final = 1.0
"""After how long a client is told that its question is searched: until then, what fails has its own HTTP status."""
_MOST_PLANS: Final = 3
"""A model may be replaced while a request for it is planned again."""


def unchanged(error: ApiError) -> ApiError:
    """Returns the error unchanged: for endpoints whose plans use the field names of the client's request."""
    return error


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """The properties of an endpoint that asks a worker."""

    id_prefix: str
    """The prefix of answer ids."""
    request: type[Body]
    renamed: Callable[[ApiError], ApiError] = unchanged
    """Renames an error's fields to those of the client's request."""
    keep_alive: bytes = KEEP_ALIVE
    """Sent in a stream where nothing else comes for some time."""
    early: Callable[[Body, str], Early] | None = None
    """Returns what a stream says before it is planned, given its id; None: the endpoint has no streams."""


@dataclass(frozen=True, slots=True)
class Received(Generic[Body]):
    """A request after the first stage."""

    body: Body
    size_bytes: int
    """The size of the body, which decides where it is planned."""
    caller: Caller
    answer_id: str
    record: RequestRecord
    early: Early | None = None
    """What its stream says before it is planned; None: it is no stream."""


class Stages(Protocol):
    """The stages after the first one."""

    @property
    def received(self) -> Received[Any]:
        """The request to plan; it may differ from the one received."""

    @property
    def may_plan_again(self) -> bool:
        """Whether it may be planned again if its model is replaced before the answer begins."""

    def answer(self) -> Answer:
        """Plans the request; the worker is asked when the answer is read. May run in a thread. Raises ApiError."""

    def abandon(self) -> None:
        """Abandons the request; does nothing if it runs without its client."""


@dataclass(frozen=True, slots=True)
class Work(Generic[Body]):
    """An endpoint with the stages of its requests, for who has requests without clients."""

    endpoint: Endpoint[Body]
    stages: Callable[[Received[Body]], Awaitable[Stages]]


class Reception:
    """Reads, plans and answers requests; shared by all routes with a body."""

    def __init__(self, service: Service, files: AttachedFiles | None = None) -> None:
        """files: reads the files of requests; None: no stored ones."""
        self.service = service
        self.files = files or AttachedFiles(service.document_reader())
        self._preparation = Preparation()

    async def read_and_plan(
        self,
        request: Request,
        body_type: type[Body],
        plan: Callable[[Body, Caller], Planned],
        *,
        max_bytes: int | None = None,
    ) -> Planned:
        """Reads, parses and plans the body; a long one in a thread.

        max_bytes: the limit of this route's bodies, if less than the service's. Raises ApiError (4xx).
        """
        caller = caller_of(request)
        body, size_bytes = await self._received(request, body_type, max_bytes)
        size_bytes += await self.files.read_all(body, caller)
        return await self._preparation.run(size_bytes, lambda: plan(body, caller))

    async def _received(
        self, request: Request, body_type: type[Body], max_bytes: int | None = None
    ) -> tuple[Body, int]:
        """Returns the parsed body and its size. See `read_and_plan`."""
        limit_bytes = self.service.settings.max_body_bytes
        limit_bytes = limit_bytes if max_bytes is None else min(limit_bytes, max_bytes)
        raw = await read_body(request, limit_bytes, self.in_thread)
        body = await self._parsed(raw, body_type)
        return body, len(raw)

    async def _parsed(self, raw: bytes, body_type: type[Body]) -> Body:
        """Returns the body, of the first model if it names none and does not find one by itself."""
        body = await self._preparation.run(len(raw), lambda: parse(body_type, raw))
        if getattr(body, "model", None) == "" and not getattr(body, "finds_its_model", False):
            body = body.model_copy(update={"model": self.service.name_of("")})
        return body

    async def answer(
        self, request: Request, endpoint: Endpoint[Body], stages: Callable[[Received[Body]], Awaitable[Stages]]
    ) -> Response:
        """Receives and answers a request that needs a worker, whole or as a stream.

        stages: returns the stages of the received request. Raises ApiError, ClientGoneError.
        """
        record = record_of(request)
        record.answer_id = answer_id = f"{endpoint.id_prefix}{uuid.uuid4().hex}"

        def as_api_error(error: Exception) -> ApiError:
            failure = errors.as_api_error(error, request_id_of(request), self.service.settings.retry_after_s)
            return endpoint.renamed(failure)

        def broken_off(error: Exception) -> ApiError:
            failure = as_api_error(error)
            failures: RecentFailures = request.app.state.failures
            failures.add(request, failure, is_stream=True)
            record.failed(failure)
            return failure

        try:
            body, size_bytes = await self._received(request, endpoint.request)
            is_stream = bool(getattr(body, "stream", False))
            early = endpoint.early(body, answer_id) if is_stream and endpoint.early is not None else None
            opening = _Opening(broken_off, self.service.settings.keep_alive_comment_s, endpoint.keep_alive, early)
            received = Received(body, size_bytes, caller_of(request), answer_id, record, early)
            return await opening.response(request.receive, self._begun(received, stages, opening))
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise as_api_error(error) from None

    async def whole(self, work: Work[Body], raw: bytes, caller: Caller) -> bytes:
        """Answers a request that no client waits for; returns the answer's body.

        Raises ApiError (4xx), and what the worker raises.
        """
        answer_id = f"{work.endpoint.id_prefix}{uuid.uuid4().hex}"

        async def body_of(answer: Answer) -> bytes:
            if not isinstance(answer, WholeAnswer):
                raise errors.invalid("The answer can only be sent whole: leave out 'stream' and 'background'.")
            return await answer.body()

        try:
            body = await self._parsed(raw, work.endpoint.request)
            size_bytes = len(raw) + await self.files.read_all(body, caller)
            following = await work.stages(Received(body, size_bytes, caller, answer_id, RequestRecord()))
            try:
                return await self._plan_and(following, body_of)
            except BaseException:
                following.abandon()
                raise
        except ApiError as error:
            raise work.endpoint.renamed(error) from None

    async def _begun(
        self, received: Received[Body], stages: Callable[[Received[Body]], Awaitable[Stages]], opening: "_Opening"
    ) -> Response:
        """Reads the request's files, searches and plans; returns the response as `_open_response` does."""
        characters = await self.files.read_all(received.body, received.caller)
        following = await stages(replace(received, size_bytes=received.size_bytes + characters))
        try:
            return await self._plan_and(following, lambda answer: self._open_response(answer, opening))
        except BaseException:
            following.abandon()
            raise

    async def _plan_and(self, stages: Stages, use: Callable[[Answer], Awaitable[Planned]]) -> Planned:
        """Plans the request, and again if its model is replaced before the answer begins."""
        size_bytes = stages.received.size_bytes
        for _ in range(_MOST_PLANS - 1):
            try:
                return await use(await self._preparation.run(size_bytes, stages.answer))
            except (ModelReplacedError, ApiError) as error:
                is_of_model = isinstance(error, ModelReplacedError) or error.code == errors.MODEL_NOT_FOUND
                if not is_of_model or not stages.may_plan_again:
                    raise
            await self.service.follow_models()
        return await use(await self._preparation.run(size_bytes, stages.answer))

    async def _open_response(self, answer: Answer, opening: "_Opening") -> Response:
        """Returns the response once it is complete, or has its first events.

        Raises what the worker raises, and what storing the answer raises.
        """
        keep_alive_s = self.service.settings.keep_alive_comment_s
        if isinstance(answer, DetachedAnswer):
            running = await answer.start(opening.broken_off)
            if not answer.is_streamed:
                return Response(running.body(), media_type="application/json")
            opening.running = running
            if opening.is_open:  # its events say that it is queued
                running.end_wait()
            else:
                await running.wait_until_begun()
            return EventStream(running.events(), keep_alive_s=keep_alive_s)
        if isinstance(answer, WholeAnswer):
            return Response(await answer.body(), media_type="application/json")
        opening.answer = answer
        first = await first_of(answer.deltas)
        written = events(answer, first, opening.broken_off)
        return EventStream(
            written, answer.deltas, answer.ended, keep_alive_s=keep_alive_s, keep_alive=opening.keep_alive
        )

    async def in_thread(self, work: Callable[[], Planned]) -> Planned:
        """Runs `work` off the event loop, so that streams continue."""
        return await self._preparation.run(LONG_BODY_BYTES, work)


@dataclass(slots=True)
class _Opening:
    """The state of one request's answer before it begins."""

    broken_off: Callable[[Exception], ApiError]
    """Records a failure after the HTTP status was sent."""
    keep_alive_s: float
    """After how long a stream is opened before its first event; 0: never."""
    keep_alive: bytes
    """What it is opened with, if it has nothing else to say."""
    early: Early | None
    """What a stream says before it is planned; None: it is no stream."""
    answer: StreamedAnswer[EventWriter] | None = None
    """A planned stream."""
    running: Running | None = None
    """A stream of an answer that continues without its client."""
    is_open: bool = False
    """Whether the stream was opened before its first event."""

    async def response(self, receive: Receive, begun: Coroutine[Any, Any, Response]) -> Response:
        """Returns or raises what `begun` does; a slow stream is opened early, one that searches after a second.

        Raises ClientGoneError too.
        """
        beginning = asyncio.create_task(begun)
        period_s = self.keep_alive_s if self.early is None else min(self.keep_alive_s, _SEARCHING_S)
        waited_s = 0.0
        try:
            while not beginning.done():
                await until_disconnect(receive, asyncio.wait({beginning}, timeout=period_s or None))
                waited_s += period_s
                is_time = waited_s >= self.keep_alive_s or (self.early is not None and self.early.is_searching)
                if is_time and not beginning.done() and (late := self._late(beginning)) is not None:
                    return late
        except BaseException:
            await abandoned(beginning)
            raise
        return beginning.result()

    def _late(self, beginning: "asyncio.Task[Any]") -> Response | None:
        """Returns an early stream; None if it is not a stream."""
        if self.running is not None:  # its events say that it is queued
            beginning.cancel()
            return EventStream(self.running.events(), keep_alive_s=self.keep_alive_s)
        early = self.early
        if early is None:
            return None
        self.is_open = True

        def failed(error: Exception) -> bytes:
            failure, answer = self.broken_off(error), self.answer
            return early.fail(failure) if answer is None else answer.writer.begin() + answer.writer.fail(failure)

        first = early.begin() or self.keep_alive
        return LateStream(beginning, failed, first, keep_alive_s=self.keep_alive_s, keep_alive=self.keep_alive)
