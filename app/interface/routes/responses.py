"""`/v1/responses`, without a memory: nothing of a response is kept once it is sent."""

import time
import uuid

from fastapi import Request
from fastapi.responses import Response

from app.interface import errors
from app.interface.answers.responses import ResponseWriter, blank_response, events, whole
from app.interface.answers.stream import stream
from app.interface.errors import ApiError
from app.interface.planning.job import Job, of_tenant
from app.interface.planning.plan import plan_chat
from app.interface.planning.responses import chat_request, in_our_words, told_in_our_words
from app.interface.reception import Reception
from app.interface.service import ServedModel
from app.interface.streaming import ClientGoneError, EventStream, first_of, until_disconnect
from app.interface.wire.responses import ResponseRequest


class ResponseRoutes:
    """The route, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        response_id = f"resp_{uuid.uuid4().hex}"
        as_api_error = self._reception.as_api_error(response_id)
        service = self._reception.service

        def planned(body: ResponseRequest) -> tuple[ServedModel, Job]:
            if body.stream_options is not None and not body.stream:
                message = "'stream_options' is allowed only with 'stream': true."
                raise errors.invalid(message, "stream_options", "invalid_value")
            served = service.model(body.model)
            try:
                chat = chat_request(body)
                job = plan_chat(served.chat, chat, service.settings.limits, response_id)
                return served, told_in_our_words(job)
            except ApiError as error:
                raise in_our_words(error) from None

        try:
            body, (served, job) = await self._reception.take(request, ResponseRequest, planned)
            job = of_tenant(job, request.state.tenant)
            blank = blank_response(body, response_id, int(time.time()))
            writer = ResponseWriter(blank, job, streams=bool(body.stream))
            deltas = stream(job, served.chat, served.generate)
            if not body.stream:
                answer = await until_disconnect(request.receive, whole(writer, deltas))
                return Response(answer.model_dump_json(), media_type="application/json")
            # Not before the worker has begun: until then an error is still an HTTP status.
            first = await first_of(request.receive, deltas)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise in_our_words(as_api_error(error)) from None
        return EventStream(events(writer, first, deltas, as_api_error), deltas)
