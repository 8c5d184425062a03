"""`/v1/chat/completions` and `/v1/completions`: from a body to a whole answer or a stream."""

import time
import uuid
from collections.abc import Callable
from typing import Literal, TypeVar

from fastapi import Request
from fastapi.responses import Response

from app.interface import errors
from app.interface.answers.completions import Envelope, events, whole
from app.interface.answers.stream import stream
from app.interface.errors import ApiError
from app.interface.planning.job import Job, Limits, of_tenant
from app.interface.planning.plan import plan_chat, plan_completion
from app.interface.reception import Reception
from app.interface.service import ServedModel
from app.interface.streaming import ClientGoneError, EventStream, first_of, until_disconnect
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest

AnyRequest = TypeVar("AnyRequest", ChatCompletionRequest, CompletionRequest)
Plan = Callable[[ChatModel, AnyRequest, Limits, str], Job]


class CompletionRoutes:
    """Both completions, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def chat_completions(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._answer(request, "chat", ChatCompletionRequest, plan_chat)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await self._answer(request, "completion", CompletionRequest, plan_completion)

    async def _answer(
        self,
        request: Request,
        kind: Literal["chat", "completion"],
        body_type: type[AnyRequest],
        plan: Plan[AnyRequest],
    ) -> Response:
        response_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
        as_api_error = self._reception.as_api_error(response_id)
        service = self._reception.service

        def planned(body: AnyRequest) -> tuple[ServedModel, Job]:
            if body.stream_options is not None and not body.stream:
                message = "'stream_options' is allowed only with 'stream': true."
                raise errors.invalid(message, "stream_options", "invalid_value")
            served = service.model(body.model)
            return served, plan(served.chat, body, service.settings.limits, response_id)

        try:
            body, (served, job) = await self._reception.take(request, body_type, planned)
            job = of_tenant(job, request.state.tenant)
            envelope = Envelope(kind, response_id, int(time.time()), body.model, body.include_usage)
            deltas = stream(job, served.chat, served.generate)
            if not body.stream:
                answer = await until_disconnect(request.receive, whole(envelope, job, deltas))
                return Response(answer.model_dump_json(), media_type="application/json")
            # Not before the worker has begun: until then an error is still an HTTP status.
            first = await first_of(request.receive, deltas)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise as_api_error(error) from None
        return EventStream(events(envelope, job, first, deltas, as_api_error), deltas)
