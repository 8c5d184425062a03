"""The stages of the endpoints that generate text: receive, plan, run, write.

`reception` receives a request. `Generation` has the other stages for a request without stored texts;
`app.interface.users.stored_answers` has them for one that continues stored texts, or whose answer is stored. A family
of endpoints (chat, completions, responses, messages) adds a `Family`; this file knows none of them.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.answer import (
    Answer,
    AnswerHead,
    BodyWriter,
    EventWriter,
    StreamedAnswer,
    WholeAnswer,
    collected,
)
from app.interface.generate.answers.deltas import Deltas, choice_deltas
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import Limits
from app.interface.generate.planning.responses import refuse_stored
from app.interface.generate.reception import Endpoint, Received, Reception
from app.interface.generate.sequences import sequences
from app.interface.generate.service import ServedModel, Service
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.observers import Observe
from app.interface.text.chat_model import ChatModel
from app.interface.wire.generation import GenerationRequest
from app.interface.wire.messages import MessagesRequest
from app.interface.wire.responses import OutputFileSearch, ResponseRequest

AnyRequest = GenerationRequest | ResponseRequest | MessagesRequest
Body = TypeVar("Body", bound=AnyRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Endpoint[Body]):
    """What one family of endpoints adds to the stages."""

    plan: Callable[[ChatModel, Body, Limits, Caller, str], Job]
    """Plans (model, body, limits, caller, request id) into a job; may run in a thread. Raises ApiError (400)."""
    body: Callable[[Body, AnswerHead, Job], BodyWriter]
    events: Callable[[Body, AnswerHead, Job], EventWriter]


class Generation(Generic[Body]):
    """The stages of a received request: plan, run, write. Nothing is stored."""

    may_plan_again = True

    def __init__(self, service: Service, family: Family[Body], received: Received[Body]) -> None:
        self.service = service
        self.family = family
        self.received = received
        self.search: OutputFileSearch | None = None
        """The search in collections before the answer."""

    def answer(self) -> Answer:
        """Runs all stages; the worker is asked when the answer is read. May run in a thread. Raises ApiError (4xx)."""
        body = self.received.body
        _check_stream(body)
        served = self.service.model(body.model)
        job = self.plan(served.chat)
        head = AnswerHead(self.received.answer_id, int(time.time()), body.model, self.search, self.received.early)
        return self.write(head, job, self.run(served, job))

    def plan(self, chat: ChatModel) -> Job:
        """Turns the request into a job for the engine."""
        received = self.received
        limits = self.service.limits
        return self.family.plan(chat, received.body, limits, received.caller, received.answer_id)

    def run(
        self, served: ServedModel, job: Job, *, stored: Observe | None = None, conversation: str | None = None
    ) -> Deltas:
        """Starts the job and returns its deltas.

        stored: collects the answer's tokens. conversation: whose saved KV pages to use; None: the request's.
        """
        received = self.received
        body, record = received.body, received.record
        name = self.service.name_of(body.model)
        record.note_model(name, job.prompt_tokens)
        record.is_stream = bool(body.stream)
        generate = sequences(
            self.service,
            served.generate,
            received.caller,
            name,
            job.prompt_tokens,
            record=record,
            stored=stored,
            conversation=conversation or body.prompt_cache_key,
            shared_tokens=job.shared_tokens,
        )
        return choice_deltas(job, served.chat, generate)

    def write(self, head: AnswerHead, job: Job, deltas: Deltas) -> Answer:
        """Turns deltas into the answer."""
        body = self.received.body
        if body.stream:
            return StreamedAnswer(deltas, self.family.events(body, head, job))
        whole = self.family.body(body, head, job)
        return WholeAnswer(lambda: collected(whole, deltas))

    def abandon(self) -> None:
        """Abandons the request; nothing to do here."""


async def generate(
    reception: Reception,
    request: Request,
    family: Family[Body],
    store: Callable[[Generation[Body]], Awaitable[Generation[Body]]] | None = None,
) -> Response:
    """Answers one request of a family. Raises ApiError, ClientGoneError.

    store: replaces the stages if the request needs stored texts.
    """
    return await reception.answer(request, family, stages_of(reception.service, family, store))


def stages_of(
    service: Service,
    family: Family[Body],
    store: Callable[[Generation[Body]], Awaitable[Generation[Body]]] | None = None,
) -> Callable[[Received[Body]], Awaitable[Generation[Body]]]:
    """Returns what makes the stages of a family's received request. store: see `generate`."""

    async def stages(received: Received[Body]) -> Generation[Body]:
        plain = Generation(service, family, received)
        return plain if store is None else await store(plain)

    return stages


def _check_stream(body: AnyRequest) -> None:
    if body.stream_options is not None and not body.stream:
        message = "'stream_options' is allowed only with 'stream': true."
        raise errors.invalid(message, "stream_options", "invalid_value")
    if body.return_progress and not body.stream:
        message = "'return_progress' is allowed only with 'stream': true."
        raise errors.invalid(message, "return_progress", "invalid_value")


class Stored:
    """What is stored for users, of a service without any."""

    async def stages(self, plain: Generation[ResponseRequest]) -> Generation[ResponseRequest]:
        """Returns the stages of a request (see `generate`). Raises ApiError (400) if it needs a user."""
        refuse_stored(plain.received.body)
        return plain

    async def whole(self, request: ResponseRequest, caller: Caller) -> ResponseRequest:
        """Returns the request with its history in its input. Raises ApiError (400) if it needs a user."""
        refuse_stored(request)
        return request
