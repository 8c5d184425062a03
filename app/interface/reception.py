"""From a request's bytes to its answer: what all routes that take a body do, whatever the body asks for.

It knows no path and no family of endpoints. Long bodies are parsed, rendered and tokenized off the event loop.
"""

import uuid
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from app.interface import errors
from app.interface.answers.answer import Answer, DetachedAnswer, WholeAnswer, events
from app.interface.callers import Caller, caller_of
from app.interface.errors import ApiError
from app.interface.preparation import LONG_BODY_BYTES, Preparation
from app.interface.recent_failures import RecentFailures, request_id_of
from app.interface.request_record import record_of
from app.interface.service import Service
from app.interface.streaming import ClientGoneError, EventStream, first_of, until_disconnect
from app.interface.wire.parse import parse
from app.messages.failures import ModelReplacedError

Body = TypeVar("Body", bound=BaseModel)
Planned = TypeVar("Planned")

_MOST_PLANS: Final = 3
"""A model may be replaced while a request for it is planned again."""


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body, if it says that it is JSON and is not too large. Raises ApiError (413, 415)."""
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        # A browser sends other types across sites to a local address without asking that address first.
        raise errors.wrong_content_type()
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit_bytes):
        raise errors.body_too_large(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise errors.body_too_large(limit_bytes)
    return bytes(body)


def unchanged(error: ApiError) -> ApiError:
    """Returns the error as it is: for endpoints whose plans use the field names of the client's request."""
    return error


class Reception:
    """Reads, plans and answers requests; shared by all routes that take a body."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._preparation = Preparation()

    async def take(
        self,
        request: Request,
        body_type: type[Body],
        plan: Callable[[Body, Caller], Planned],
        *,
        max_bytes: int | None = None,
    ) -> Planned:
        """Reads, parses and plans the request's body; a long body is planned in a thread.

        max_bytes: the limit of this route's bodies, if it is less than the service's. Raises ApiError (4xx).
        """
        caller = caller_of(request)
        body, size_bytes = await self._received(request, body_type, max_bytes)
        return await self._preparation.run(size_bytes, lambda: plan(body, caller))

    async def _received(
        self, request: Request, body_type: type[Body], max_bytes: int | None = None
    ) -> tuple[Body, int]:
        """The request's body, and how many bytes it had. See `take`."""
        limit_bytes = self.service.settings.max_body_bytes
        raw = await read_body(request, limit_bytes if max_bytes is None else min(limit_bytes, max_bytes))
        return await self._preparation.run(len(raw), lambda: parse(body_type, raw)), len(raw)

    async def answer(
        self,
        request: Request,
        id_prefix: str,
        body_type: type[Body],
        plan: Callable[[Body, Caller, str], Answer],
        renamed: Callable[[ApiError], ApiError] = unchanged,
        prepare: Callable[[Body, Caller, str], Awaitable[Body]] | None = None,
        may_plan_again: Callable[[], bool] = lambda: True,
    ) -> Response:
        """Answers a request that needs a worker: plans it, then waits for the whole answer, or streams it.

        prepare: makes the request that is planned from the one that came. plan: from the body, the caller and the
        answer's id to the answer. renamed: a failure in the field names of the client's request. may_plan_again:
        whether it may be planned for the new model, if its model is replaced before the answer begins.

        Raises ApiError, ClientGoneError.
        """
        answer_id = f"{id_prefix}{uuid.uuid4().hex}"
        record_of(request).answer_id = answer_id

        def as_api_error(error: Exception) -> ApiError:
            return renamed(errors.as_api_error(error, request_id_of(request), self.service.settings.retry_after_s))

        def broken_off(error: Exception) -> ApiError:
            failure = as_api_error(error)
            failures: RecentFailures = request.app.state.failures
            failures.add(request, failure, is_stream=True)
            record_of(request).failed(failure)
            return failure

        try:
            caller = caller_of(request)
            body, size_bytes = await self._received(request, body_type)
            asked = body if prepare is None else await prepare(body, caller, answer_id)
            if asked is not body:  # how long another one is nobody knows: what was stored may come before it
                size_bytes = max(size_bytes, LONG_BODY_BYTES)
            for _ in range(_MOST_PLANS - 1):
                try:
                    answer = await self._preparation.run(size_bytes, lambda: plan(asked, caller, answer_id))
                    return await self._begun(request, answer, broken_off)
                except (ModelReplacedError, ApiError) as error:
                    is_of_model = isinstance(error, ModelReplacedError) or error.code == errors.MODEL_NOT_FOUND
                    if not is_of_model or not may_plan_again():
                        raise
                await self.service.follow_models()
            answer = await self._preparation.run(size_bytes, lambda: plan(asked, caller, answer_id))
            return await self._begun(request, answer, broken_off)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise as_api_error(error) from None

    async def _begun(self, request: Request, answer: Answer, broken_off: Callable[[Exception], ApiError]) -> Response:
        """The response to a planned request, when it is complete, or its first events have come.

        Events begin only after the worker has begun: until then a failure still has an HTTP status. Raises ApiError,
        ClientGoneError, and what the worker raises.
        """
        if isinstance(answer, DetachedAnswer):
            return await self._detached(request, answer, broken_off)
        if isinstance(answer, WholeAnswer):
            content = await until_disconnect(request.receive, answer.body())
            return Response(content, media_type="application/json")
        first = await first_of(request.receive, answer.deltas)
        leave = None if answer.keeper is None else answer.keeper.leave
        return EventStream(events(answer, first, broken_off), answer.deltas, leave)

    async def _detached(
        self, request: Request, answer: DetachedAnswer, as_api_error: Callable[[Exception], ApiError]
    ) -> Response:
        """Starts an answer that goes on without its client, and sends what comes of it while the client listens."""
        running = await answer.start(as_api_error)
        if not answer.is_streamed:
            return Response(running.body(), media_type="application/json")
        await until_disconnect(request.receive, running.begun())
        return EventStream(running.events())

    async def in_thread(self, work: Callable[[], Planned]) -> Planned:
        """Runs `work` off the event loop, so that other streams go on."""
        return await self._preparation.run(LONG_BODY_BYTES, work)
