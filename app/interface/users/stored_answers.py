"""Responses that are stored, or that continue stored texts: loading the history, and storing the result.

`StoredAnswers.stages` loads the history of a request. The answer's writer then reports how it ended: `complete` stores
it before the client learns that it is complete; `abandon` stores what the client has seen of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from app.interface.generate.answers.answer import (
    Answer,
    AnswerHead,
    DetachedAnswer,
    StreamedAnswer,
    WholeAnswer,
    collected,
)
from app.interface.generate.answers.deltas import Deltas
from app.interface.generate.answers.responses import ResponseBody, ResponseEvents
from app.interface.generate.answers.running import RunningAnswer
from app.interface.generate.generation import Generation, Stored
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.passages import drop_uncited
from app.interface.generate.planning.responses import refuse_stored, with_search
from app.interface.generate.reception import Received
from app.interface.generate.service import ServedModel
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.request.observers import Observe, Observer
from app.interface.request.preparation import LONG_BODY_BYTES
from app.interface.text.chat_model import ChatModel
from app.interface.users.gate import AccountsGate, Meter
from app.interface.users.items import items_of
from app.interface.users.knowledge.file_search import FileSearch
from app.interface.users.texts import Conversation, History, Item, NewResponse, Texts, off_loop, size_of
from app.interface.wire.fields import MAX_MESSAGES
from app.interface.wire.response_items import InputItem
from app.interface.wire.responses import ResponseObject, ResponseRequest
from app.messages.accounts import AccountsError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest

_INPUT = TypeAdapter(list[InputItem])
_NO_ROOM = ("insufficient_quota", "service_unavailable")
_TRY_AGAIN_S = (0.2, 1.0, 5.0, 25.0)
"""Delays between retries while the accounts do not answer."""


@dataclass(slots=True)
class StoredAnswer:
    """One response of a user, from its request until it is stored or discarded."""

    request: ResponseRequest = field(repr=False)
    """The request, with the history in its input."""
    question: Sequence[Item] = field(repr=False)
    """The request's own input."""
    conversation: Conversation | None
    """The conversation, if the response is a turn of one."""
    stores: bool
    is_store_requested: bool
    """Whether the request asks to store it, rather than the default."""
    response_id: str
    user_id: str
    meter: Meter
    """Counts its tokens until it has ended."""
    _texts: Texts
    _gate: AccountsGate
    answers: Mapping[str, Sequence[int]] = field(default_factory=dict, repr=False)
    """Maps the texts of earlier answers to the model's own tokens."""
    _token_ids: list[int] = field(default_factory=list, repr=False)
    _is_over: bool = False
    _runs: bool = False
    _has_question: bool = False
    """Whether `question` is stored in the conversation already."""

    def observer(self, request: GenerateRequest) -> Observer:
        """Collects the answer's token ids."""

        def saw(delta: TokenDelta) -> None:
            self._token_ids += delta.token_ids

        return Observer(saw)

    def keeper(self, writer: ResponseBody | ResponseEvents) -> "ResponseKeeper":
        """Returns a keeper for the writer's result."""
        return ResponseKeeper(self, writer)

    def detached(self, answer: StreamedAnswer[ResponseEvents]) -> DetachedAnswer:
        """Wraps the answer so that it continues without its client, and can be found by its id."""

        async def start(as_api_error: Callable[[Exception], ApiError]) -> RunningAnswer:
            running = RunningAnswer(answer, RunningResponse(self), as_api_error, is_awaited=bool(self.request.stream))
            self._runs = self.meter.is_detached = True
            await self._gate.to_the_end(self._start(running))
            return running

        return DetachedAnswer(start, is_streamed=bool(self.request.stream))

    async def _start(self, running: RunningAnswer) -> None:
        """Starts the answer; if that fails, the turn and the request end here, since the client may be gone."""
        try:
            await self._gate.running.start(self.response_id, running)
        except BaseException:
            self._runs = False
            self.abandon()
            self.release()
            raise

    async def store_open(self, response: ResponseObject) -> None:
        """Stores it as in progress. Raises AccountsError."""
        await self._texts.store_open(self._record(response))

    async def add_question(self) -> None:
        """Stores the question, so that the conversation keeps it even if the answer fails."""
        if self.conversation is None or self._has_question:
            return
        adding = self._texts.add_question(self.conversation, self.question, self.request.parent)
        self.conversation = await self._gate.to_the_end(adding)
        self._has_question = True

    async def store_with_retries(self, response: ResponseObject) -> None:
        """Stores the ended response, with retries while the accounts do not answer. Raises AccountsError."""
        self._is_over = True
        try:
            await self._gate.to_the_end(_with_retries(lambda: self._texts.store(self._record(response), was_open=True)))
        except BaseException:
            self._end_turn()
            raise

    async def discard(self) -> None:
        """Deletes the response."""
        self._is_over = True
        self._end_turn()
        await self._gate.to_the_end(self._texts.delete_response(self.response_id))

    def release(self) -> None:
        """Sends its usage to the accounts."""
        self._gate.unregister(self.meter, admitted=True)

    async def complete(self, response: ResponseObject) -> None:
        """Stores the response even if the client disconnects meanwhile.

        If storing was only the default and is impossible, the answer is sent all the same and says that it is not
        stored. Raises AccountsError, ApiError.
        """
        if self._is_over:
            return
        self._is_over = True
        if not self.stores:
            return
        try:
            await self._gate.to_the_end(self._store(response))
        except AccountsError as error:
            if self.is_store_requested or error.refusal.code not in _NO_ROOM:
                raise
            response.store = False

    def abandon(self, response: ResponseObject | None = None) -> None:
        """Ends a failed or abandoned answer; what the client has seen of it is stored.

        Does nothing after `complete`, or if it runs without its client. response: what the client has seen; None:
        nothing.
        """
        if self._is_over or self._runs:
            return
        self._is_over = True
        if response is not None and response.output and self.stores:
            self._gate.in_background(self._store(response))
        else:
            self._end_turn()

    def _end_turn(self) -> None:
        if self.conversation is not None:
            self._gate.in_background(_end_turn(self._texts, self.conversation))

    def _record(self, response: ResponseObject) -> NewResponse:
        said = [item.type for item in response.output if item.type != "file_search_call"]
        is_text = said == ["message"]  # tokens of a thought would not spell the text
        body = response.model_dump()
        drop_uncited(body)
        return NewResponse(
            id=self.response_id,
            body=body,
            question=self.question,
            token_ids=self._token_ids if is_text else [],
            previous_id=self.request.previous_response_id,
            conversation=self.conversation,
            parent=self.request.parent,
            has_question=self._has_question,
        )

    async def _store(self, response: ResponseObject) -> None:
        try:
            await self._texts.store(self._record(response))
        except BaseException:  # the accounts may not have received it: then the turn would stay open
            self._end_turn()
            raise


@dataclass(frozen=True, slots=True)
class RunningResponse:
    """A stored answer that continues without its client: implements `RunningKeeper` of `generate.answers.running`."""

    _answer: StoredAnswer

    @property
    def owner(self) -> str:
        return self._answer.user_id

    @property
    def conversation_id(self) -> str | None:
        return None if self._answer.conversation is None else self._answer.conversation.id

    async def store_open(self, response: ResponseObject) -> None:
        await self._answer.store_open(response)

    async def store_question(self) -> None:
        await self._answer.add_question()

    async def complete(self, response: ResponseObject) -> None:
        await self._answer.store_with_retries(response)

    async def discard(self) -> None:
        await self._answer.discard()

    def release(self) -> None:
        self._answer.release()


@dataclass(frozen=True, slots=True)
class ResponseKeeper:
    """A stored answer while its writer collects it: implements `app.interface.generate.answers.answer.Keeper`."""

    _answer: StoredAnswer
    _writer: ResponseBody | ResponseEvents

    async def complete(self) -> None:
        await self._answer.complete(self._writer.so_far())

    def abandon(self) -> None:
        """A stream's client has seen what was written so far; the client of a whole answer nothing."""
        self._answer.abandon(self._writer.so_far() if isinstance(self._writer, ResponseEvents) else None)


class StoredGeneration(Generation[ResponseRequest]):
    """The stages of a request that continues stored texts, or whose answer is stored."""

    may_plan_again = False

    def __init__(self, plain: Generation[ResponseRequest], answer: StoredAnswer) -> None:
        """plain: the stages of the request as received. The body counts as long: its history's length is unknown."""
        came = plain.received
        received = replace(came, body=answer.request, size_bytes=max(came.size_bytes, LONG_BODY_BYTES))
        super().__init__(plain.service, plain.family, received)
        self._answer = answer

    def plan(self, chat: ChatModel) -> Job:
        """Plans with earlier answers as the model's own tokens."""
        return super().plan(chat.with_known_answers(self._answer.answers))

    def run(
        self, served: ServedModel, job: Job, *, stored: Observe | None = None, conversation: str | None = None
    ) -> Deltas:
        """Runs with the saved KV pages of its conversation."""
        return super().run(served, job, stored=self._answer.observer, conversation=self._answer.request.conversation_id)

    def write(self, head: AnswerHead, job: Job, deltas: Deltas) -> Answer:
        """Writes an answer that is stored at its end; one in the background continues without its client."""
        body = self.received.body
        if body.background:
            return self._answer.detached(StreamedAnswer(deltas, ResponseEvents(body, head, job)))
        if body.stream:
            events = ResponseEvents(body, head, job)
            return StreamedAnswer(deltas, events, self._answer.keeper(events))
        whole = ResponseBody(body, head, job)
        return WholeAnswer(lambda: collected(whole, deltas, self._answer.keeper(whole)))

    def abandon(self) -> None:
        """Ends the turn, unless it runs without its client."""
        self._answer.abandon()


class StoredAnswers(Stored):
    """Creates stored generations for one ingress."""

    def __init__(self, gate: AccountsGate, file_search: FileSearch) -> None:
        self._gate = gate
        self._file_search = file_search

    async def stages(self, plain: Generation[ResponseRequest]) -> Generation[ResponseRequest]:
        """Returns the stages of the request; `plain` if it has no history, searches nothing, and nothing is stored.

        Raises ApiError (400, 500), AccountsError: `not_found`, `conversation_conflict`.
        """
        received = plain.received
        answer = await self._stored_answer(received)
        request = received.body if answer is None else answer.request
        try:
            search = await self._file_search.searched(request, received.caller, received.early)
        except BaseException:
            if answer is not None:
                answer.abandon()
            raise
        finally:
            if received.early is not None:
                received.early.searching(None)
        if search is not None:
            request = with_search(request, search)
        if answer is not None:
            answer.request = request
            stages: Generation[ResponseRequest] = StoredGeneration(plain, answer)
        elif search is None:
            return plain
        else:
            stages = Generation(plain.service, plain.family, replace(received, body=request))
        stages.search = search
        return stages

    async def whole(self, request: ResponseRequest, caller: Caller) -> ResponseRequest:
        """Returns the request with its history in its input. Raises ApiError (400), AccountsError: `not_found`."""
        if caller.identity is None:
            refuse_stored(request)
            return request
        before = (await _history_of(request, Texts(self._gate.stored, caller.identity, caller.secret))).items
        question = items_of(request.input)
        return await off_loop(size_of(before), lambda: _with_history(request, before, question, stores=False))

    async def _stored_answer(self, received: Received[ResponseRequest]) -> StoredAnswer | None:
        request, caller, response_id = received.body, received.caller, received.answer_id
        if caller.identity is None:
            refuse_stored(request)
            return None
        if request.conversation is not None and request.previous_response_id is not None:
            message = "'conversation' and 'previous_response_id' exclude each other."
            raise errors.invalid(message, "previous_response_id", "invalid_value")
        assert isinstance(caller.meter, Meter)  # the route generates, so it has a meter
        texts = Texts(self._gate.stored, caller.identity, caller.secret)
        stores = request.store is not False
        if request.background and not stores:
            message = "'background' needs 'store': the answer is to be found when it has ended."
            raise errors.invalid(message, "background", "invalid_value")
        if not stores and request.conversation is None and request.previous_response_id is None:
            return None
        question, conversation = items_of(request.input), None
        if stores and request.conversation_id is not None:
            conversation = await self._begin_turn(texts, request.conversation_id, response_id)
        answer = StoredAnswer(
            request,
            question,
            conversation,
            stores,
            is_store_requested=bool(request.store) or conversation is not None,
            response_id=response_id,
            user_id=caller.identity.user_id,
            meter=caller.meter,
            _texts=texts,
            _gate=self._gate,
        )
        try:
            before = await _history_of(request, texts)
            answer.answers = before.answers
            items, size = before.items, size_of(before.items)
            answer.request = await off_loop(size, lambda: _with_history(request, items, question, stores=stores))
        except BaseException:
            answer.abandon()
            raise
        return answer

    async def _begin_turn(self, texts: Texts, conversation_id: str, response_id: str) -> Conversation:
        """Begins a turn. If the client disconnects meanwhile, ends it, or else the conversation would stay locked."""
        beginning = asyncio.ensure_future(texts.begin_turn(conversation_id, response_id))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            self._gate.in_background(_end_begun(texts, beginning))
            raise


async def _end_begun(texts: Texts, beginning: "asyncio.Future[Conversation]") -> None:
    await _end_turn(texts, await beginning)


async def _end_turn(texts: Texts, conversation: Conversation) -> None:
    """Ends the turn with retries: the conversation stays locked until the accounts know."""
    await _with_retries(lambda: texts.end_turn(conversation))


async def _with_retries(call: Callable[[], Awaitable[None]]) -> None:
    """Calls the accounts, with retries while they do not answer."""
    for wait_s in _TRY_AGAIN_S:
        try:
            await call()
            return
        except AccountsError as error:
            if error.refusal.code != "service_unavailable":
                raise
        await asyncio.sleep(wait_s)
    await call()


async def _history_of(request: ResponseRequest, texts: Texts) -> History:
    if request.conversation_id is not None:
        return await texts.branch(request.conversation_id, request.parent)
    if request.previous_response_id is not None:
        return await texts.history(request.previous_response_id)
    return History()


def _with_history(
    request: ResponseRequest, before: Sequence[Item], question: Sequence[Item], *, stores: bool
) -> ResponseRequest:
    field_name = "previous_response_id" if request.conversation is None else "conversation"
    if len(before) + len(question) > MAX_MESSAGES:
        message = f"'{field_name}': with the input there are more than {MAX_MESSAGES} items. Begin another one."
        raise errors.invalid(message, field_name, "context_length_exceeded")
    changes: dict[str, Any] = {"store": stores}
    if before:
        changes["input"] = _INPUT.validate_python([*before, *question])
    return request.model_copy(update=changes)
