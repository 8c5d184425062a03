"""The one procedure of the endpoints that generate text: plan a job, run it, write its answer.

`reception` reads and parses the body and calls `plan` here. `answers/deltas.py` runs the job, through the `generate` of
`controller/worker_client.py`. A family of endpoints (chat, completions, responses) adds a `Family`, and this file knows
none of them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import Request
from fastapi.responses import Response

from app.interface import errors
from app.interface.answers.answer import (
    Answer,
    AnswerHead,
    BodyWriter,
    EventWriter,
    StreamedAnswer,
    WholeAnswer,
    collected,
)
from app.interface.answers.deltas import choice_deltas
from app.interface.callers import Caller
from app.interface.errors import ApiError
from app.interface.planning.job import Job
from app.interface.planning.limits import Limits
from app.interface.reception import Reception, unchanged
from app.interface.text.chat_model import ChatModel
from app.interface.wire.generation import GenerationRequest
from app.interface.wire.responses import ResponseRequest

Body = TypeVar("Body", bound=GenerationRequest | ResponseRequest)


@dataclass(frozen=True, slots=True)
class Family(Generic[Body]):
    """What one family of endpoints adds to the procedure."""

    id_prefix: str
    """How its answers' ids begin."""
    request: type[Body]
    plan: Callable[[ChatModel, Body, Limits, Caller, str], Job]
    """From (model, body, limits, caller, request id) to a job; may run in a thread. Raises ApiError (400)."""
    body: Callable[[Body, AnswerHead, Job], BodyWriter]
    events: Callable[[Body, AnswerHead, Job], EventWriter]
    renamed: Callable[[ApiError], ApiError] = unchanged
    """A failure in the field names of the client's request."""


async def generate(reception: Reception, request: Request, family: Family[Body]) -> Response:
    """Answers one request of a family. Raises ApiError, ClientGoneError."""
    service = reception.service

    def plan(body: Body, caller: Caller, request_id: str) -> Answer:
        if body.stream_options is not None and not body.stream:
            message = "'stream_options' is allowed only with 'stream': true."
            raise errors.invalid(message, "stream_options", "invalid_value")
        served = service.model(body.model)
        job = family.plan(served.chat, body, service.settings.limits, caller, request_id)
        head = AnswerHead(request_id, int(time.time()), body.model)
        remembered = caller.remembered(body.prompt_cache_key, served.generate)
        deltas = choice_deltas(job, served.chat, caller.metered(body.model, job.prompt_tokens, remembered))
        if body.stream:
            return StreamedAnswer(deltas, family.events(body, head, job))
        return WholeAnswer(lambda: collected(family.body(body, head, job), deltas))

    return await reception.answer(request, family.id_prefix, family.request, plan, family.renamed)
