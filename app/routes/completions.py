"""`/v1/chat/completions` and `/v1/completions`: from a body to a whole answer or a stream."""

import time
import uuid
from collections.abc import Callable
from typing import Literal, TypeVar

from fastapi import Request
from fastapi.responses import Response

from app import answers, errors, generation, planning
from app.chat import ChatModel
from app.errors import ApiError
from app.http_service import Reception, ServedModel
from app.openai_types import ChatCompletionRequest, CompletionRequest
from app.planning import Job, Limits
from app.sse import ClientGoneError, EventStream, first_of, until_disconnect

AnyRequest = TypeVar("AnyRequest", ChatCompletionRequest, CompletionRequest)
Plan = Callable[[ChatModel, AnyRequest, Limits, str], Job]


class CompletionRoutes:
    """Both completions, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def chat_completions(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._answer(request, "chat", ChatCompletionRequest, planning.plan_chat)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await self._answer(request, "completion", CompletionRequest, planning.plan_completion)

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
            job = planning.of_tenant(job, request.state.tenant)
            envelope = answers.Envelope(kind, response_id, int(time.time()), body.model, body.include_usage)
            deltas = generation.stream(job, served.chat, served.generate)
            if not body.stream:
                answer = await until_disconnect(request.receive, answers.whole(envelope, job, deltas))
                return Response(answer.model_dump_json(), media_type="application/json")
            # Not before the worker has begun: until then an error is still an HTTP status.
            first = await first_of(request.receive, deltas)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise as_api_error(error) from None
        return EventStream(answers.events(envelope, job, first, deltas, as_api_error), deltas)
