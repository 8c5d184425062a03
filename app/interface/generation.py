"""The one procedure of the endpoints that generate text: plan a job, run it, write its answer.

`reception` reads and parses the body and calls `plan` here. `answers/deltas.py` runs the job, through the `generate` of
`controller/worker_client.py`. A family of endpoints (chat, completions, responses) adds a `Family`, and this file knows
none of them.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response

from app.interface import errors
from app.interface.answers.answer import (
    Answer,
    AnswerHead,
    BodyWriter,
    DetachedAnswer,
    EventWriter,
    Keeper,
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
from app.interface.request_record import record_of
from app.interface.text.chat_model import ChatModel
from app.interface.wire.generation import GenerationRequest
from app.interface.wire.responses import ResponseRequest
from app.messages.outputs import Generate

Body = TypeVar("Body", bound=GenerationRequest | ResponseRequest)
Planned = TypeVar("Planned", bound=GenerationRequest | ResponseRequest, covariant=True)


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


class StoredAnswer(Protocol[Planned]):
    """An answer that goes on from what is stored, or that will be; `app.interface.accounts.stored_answers` has it."""

    @property
    def request(self) -> Planned:
        """What to plan in place of the request that came."""

    @property
    def conversation_name(self) -> str | None:
        """Whose saved pages it goes on with; None: the request's `prompt_cache_key` says it."""

    @property
    def answers(self) -> Mapping[str, Sequence[int]]:
        """The model's own tokens of the answers before, by their texts."""

    def recording(self, generate: Generate) -> Generate:
        """`generate`, with the answer's tokens kept beside its text."""

    @property
    def is_detached(self) -> bool:
        """Whether it goes on without its client."""

    def keeper(self, writer: Any) -> Keeper:
        """writer: the answer's."""

    def detached(self, answer: StreamedAnswer[Any]) -> DetachedAnswer:
        """The answer, which goes on without its client."""

    def leave(self) -> None:
        """It has come to nothing; does nothing once it runs without its client."""


async def generate(
    reception: Reception,
    request: Request,
    family: Family[Body],
    begin: Callable[[Body, Caller, str], Awaitable[StoredAnswer[Body] | None]] | None = None,
) -> Response:
    """Answers one request of a family. Raises ApiError, ClientGoneError.

    begin: from (body, caller, request id) to what is stored of it; None: nothing is.
    """
    service, record = reception.service, record_of(request)
    stored: StoredAnswer[Body] | None = None

    async def prepare(body: Body, caller: Caller, request_id: str) -> Body:
        nonlocal stored
        assert begin is not None
        stored = await begin(body, caller, request_id)
        return body if stored is None else stored.request

    def plan(body: Body, caller: Caller, request_id: str) -> Answer:
        if body.stream_options is not None and not body.stream:
            message = "'stream_options' is allowed only with 'stream': true."
            raise errors.invalid(message, "stream_options", "invalid_value")
        if body.return_progress and not body.stream:
            message = "'return_progress' is allowed only with 'stream': true."
            raise errors.invalid(message, "return_progress", "invalid_value")
        served = service.model(body.model)
        chat, worker = served.chat, served.generate
        if stored is not None:
            chat, worker = chat.knowing(stored.answers), stored.recording(worker)
        job = family.plan(chat, body, service.settings.limits, caller, request_id)
        head = AnswerHead(request_id, int(time.time()), body.model)
        name = None if stored is None else stored.conversation_name
        record.asks(body.model, job.prompt_tokens)
        record.is_stream = bool(body.stream)
        remembered = caller.remembered(name or body.prompt_cache_key, record.observed(worker), job.shared_tokens)
        deltas = choice_deltas(job, served.chat, caller.metered(body.model, job.prompt_tokens, remembered))
        if body.stream or (stored is not None and stored.is_detached):
            events = family.events(body, head, job)
            if stored is not None and stored.is_detached:
                return stored.detached(StreamedAnswer(deltas, events))
            return StreamedAnswer(deltas, events, None if stored is None else stored.keeper(events))
        whole = family.body(body, head, job)
        keeper = None if stored is None else stored.keeper(whole)
        return WholeAnswer(lambda: collected(whole, deltas, keeper))

    prepares = None if begin is None else prepare
    try:
        return await reception.answer(
            request, family.id_prefix, family.request, plan, family.renamed, prepares, lambda: stored is None
        )
    except BaseException:
        if stored is not None:
            stored.leave()
        raise
