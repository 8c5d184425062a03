"""Builds a response item by item, and its events.

A thought, the text of an answer and each call are an item each, in the order in which they began. White space before a
first call is not a message. It knows nothing of HTTP, templates, tokens or the engine.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from app.interface.functions.custom_input import CustomInput
from app.interface.functions.response_tools import offered_tools, shown
from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.chunks import event_json, wire_progress
from app.interface.generate.answers.usage import TokenCount
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.passages import citations
from app.interface.generate.planning.responses import found_before
from app.interface.request.errors import ApiError
from app.interface.wire.responses import (
    ConversationPlace,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputFileSearch,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningText,
    ResponseError,
    ResponseObject,
    ResponseRequest,
    ResponseStatus,
    ResponseUsage,
)


class ResponseBuilder:
    """Builds a response from one choice's deltas, and its events for a stream."""

    def __init__(self, request: ResponseRequest, head: AnswerHead, job: Job | None, *, streams: bool) -> None:
        """job: None if it is not planned yet; then it can only begin and fail. streams: whether to write events."""
        self.response = _blank_response(request, head, job)
        if request.return_progress:
            self.response.status = "queued"
        self._counted = None if job is None else TokenCount(job)
        self.response.context = None if self._counted is None else self._counted.context()
        self._streams = streams
        self._events: list[bytes] = []
        self._number = 0
        self._thought: int | None = None  # the index of the open thought in the output
        self._message: int | None = None  # the index of the open message
        self._call: int | None = None  # the index of the open call
        self._held = ""  # white space, which is part of a message only if more text follows
        self._held_logprobs: list[dict[str, Any]] = []
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._arguments: list[str] = []  # of the open call; for a custom tool its input
        self._input: CustomInput | None = None  # set if the open call is of a custom tool
        self._tools = {} if job is None else {tool.alias: tool for tool in offered_tools(request.tools)}
        self._search = head.search
        self._early = head.early
        self._citable = found_before(request) if head.search is None else head.search.results

    def begin(self) -> None:
        """Writes the first events, but those that the stream has had before."""
        opened = None if self._early is None else self._early.opened
        if opened is None:
            self._whole_event("response.created")
            self._whole_event(f"response.{self.response.status}")
        else:
            self._number, self.response.created_at = opened.events, opened.created
        self._add_search(is_begun=opened is not None)

    @property
    def events_written(self) -> int:
        return self._number

    def begin_search(self, search: OutputFileSearch) -> None:
        """Writes the first events of the search before the answer."""
        added = {**search.model_dump(), "status": "in_progress", "results": []}
        self._event("response.output_item.added", output_index=0, item=added)
        for state in ("in_progress", "searching"):
            self._event(f"response.file_search_call.{state}", item_id=search.id, output_index=0)

    def leave_search(self, search: OutputFileSearch) -> None:
        """Ends a search that was begun, without an end of its own."""
        self.response.output.append(search)
        self._end_item(0, "incomplete")

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._add_search()
        self._count.add(deltas)
        for delta in deltas:
            if self.response.status == "queued" and (delta.progress is None or delta.progress.queued_ahead is None):
                self.response.status = "in_progress"
                self._whole_event("response.in_progress")
            if delta.progress is not None:
                self._event("response.prompt_progress", prompt_progress=wire_progress(delta.progress))
            self._add_thought(delta.thought)
            if delta.cut is not None and self._thought is not None:
                self._reasoning(self._thought).cut = "budget" if delta.cut == "budget" else "max_output_tokens"
            self._add_text(delta.text, (delta.logprobs or {}).get("content", []))
            for call in delta.calls:
                if call.call_id is not None and call.name is not None:
                    self._end_thought("completed")
                    self._end_call("completed")
                    self._begin_call(call.call_id, call.name)
                self._add_arguments(call.arguments if self._input is None else self._input.feed(call.arguments))
                if call.done:
                    self._end_call("completed")
            if delta.finish_reason is not None:
                self._end(incomplete=delta.finish_reason == "length")

    def fail(self, error: ApiError) -> None:
        """Ends the response with what it has."""
        self._end_items("incomplete")
        code = {400: "invalid_prompt", 429: "rate_limit_exceeded"}.get(error.status, "server_error")
        self.response.error = ResponseError(code=code, message=error.message)
        self.response.status = "failed"
        self._whole_event("response.failed")

    def cancel(self) -> None:
        """Ends the response with what it has."""
        self._end_items("incomplete")
        self.response.status = "cancelled"
        self._whole_event("response.incomplete")

    def end(self) -> None:
        """Writes the last event."""
        self._whole_event(f"response.{self.response.status}")

    def so_far(self, status: ResponseStatus = "incomplete") -> ResponseObject:
        """Returns the response so far, with an open thought or message, but without an incomplete call."""
        if self.response.status not in ("queued", "in_progress"):
            return self.response
        response = self.response.model_copy(deep=True)
        if status != "in_progress":  # it may also be queued
            response.status = status
        if self._call is not None:
            response.output.pop(self._call)
        open_status: ItemStatus = "incomplete" if status == "incomplete" else "in_progress"
        if self._thought is not None and isinstance(thought := response.output[self._thought], OutputReasoning):
            thought.content[0].text = "".join(self._thoughts)
            thought.status = open_status
        if self._message is not None and isinstance(message := response.output[self._message], OutputMessage):
            message.content[0].text = "".join(self._texts)
            message.status = open_status
        return response

    def pop_events(self) -> bytes:
        """Returns the events since the last call."""
        events = b"".join(self._events)
        self._events.clear()
        return events

    def _add_search(self, *, is_begun: bool = False) -> None:
        """Begins the output with the search that came before the answer, if there was one."""
        if self._search is None or self.response.output:
            return
        self.response.output.append(self._search)
        if not is_begun:
            self.begin_search(self._search)
        self._item_event("response.file_search_call.completed", 0)
        self._end_item(0, "completed")

    @property
    def _count(self) -> TokenCount:
        assert self._counted is not None  # it is planned
        return self._counted

    def _add_thought(self, text: str) -> None:
        if self._thought is None:
            text = text.lstrip()  # the gap after an earlier thought
        if not text:
            return
        if self._thought is None:
            self._end_items("completed")  # a model with channels may think again after a text
            self._thought = len(self.response.output)
            self.response.output.append(OutputReasoning(id=f"rs_{uuid.uuid4().hex}", content=[]))
            self._event("response.output_item.added", output_index=self._thought, item=self._item(self._thought))
            self._reasoning(self._thought).content.append(ReasoningText())
            part = ReasoningText().model_dump()
            self._item_event("response.content_part.added", self._thought, content_index=0, part=part)
        self._thoughts.append(text)
        self._item_event("response.reasoning_text.delta", self._thought, content_index=0, delta=text)

    def _end_thought(self, status: ItemStatus) -> None:
        if self._thought is None:
            return
        place, self._thought = self._thought, None
        part = self._reasoning(place).content[0]
        part.text = "".join(self._thoughts)
        self._thoughts.clear()
        self._item_event("response.reasoning_text.done", place, content_index=0, text=part.text)
        self._item_event("response.content_part.done", place, content_index=0, part=part.model_dump())
        self._end_item(place, status)

    def _add_text(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        if self._message is None:
            self._held += text
            self._held_logprobs += logprobs
            if not self._held.strip():
                return
            text, logprobs = self._held, self._held_logprobs
            self._held, self._held_logprobs = "", []
            if any(isinstance(item, OutputMessage) for item in self.response.output):
                text = text.lstrip()
            self._begin_message()
        if text or logprobs:
            assert self._message is not None
            self._texts.append(text)
            self._part(self._message).logprobs += logprobs
            self._text_delta(self._message, text, logprobs)

    def _text_delta(self, place: int, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._item_event("response.output_text.delta", place, content_index=0, delta=text, logprobs=logprobs)

    def _begin_message(self) -> None:
        self._end_thought("completed")
        self._message = len(self.response.output)
        self.response.output.append(OutputMessage(id=f"msg_{uuid.uuid4().hex}", content=[]))
        self._event("response.output_item.added", output_index=self._message, item=self._item(self._message))
        message = self.response.output[self._message]
        assert isinstance(message, OutputMessage)
        message.content.append(OutputText())
        part = message.content[0].model_dump()
        self._item_event("response.content_part.added", self._message, content_index=0, part=part)

    def _end_message(self, status: Any) -> None:
        if self._message is None:
            return
        part = self._part(self._message)
        part.text = "".join(self._texts)
        place = self._message
        if self._citable:
            part.annotations = citations(part.text, self._citable)
            for index, annotation in enumerate(part.annotations):
                where = {"content_index": 0, "annotation_index": index}
                self._item_event("response.output_text.annotation.added", place, annotation=annotation, **where)
        self._item_event("response.output_text.done", place, content_index=0, text=part.text, logprobs=part.logprobs)
        self._item_event("response.content_part.done", place, content_index=0, part=part.model_dump())
        self._texts.clear()
        self._end_item(place, status)
        self._message = None

    def _begin_call(self, call_id: str, alias: str) -> None:
        offered = self._tools[alias]
        name, namespace = offered.tool.name, offered.namespace.name if offered.namespace is not None else None
        self._call = len(self.response.output)
        if offered.tool.type == "custom":
            self._input = CustomInput()
            custom = OutputCustomCall(id=f"ctc_{uuid.uuid4().hex}", call_id=call_id, name=name, namespace=namespace)
            self.response.output.append(custom)
        else:
            call = OutputCall(id=f"fc_{uuid.uuid4().hex}", call_id=call_id, name=name, namespace=namespace)
            self.response.output.append(call)
        self._event("response.output_item.added", output_index=self._call, item=self._item(self._call))

    def _add_arguments(self, text: str) -> None:
        if not text or self._call is None:
            return
        self._arguments.append(text)
        kind = "function_call_arguments" if self._input is None else "custom_tool_call_input"
        self._item_event(f"response.{kind}.delta", self._call, delta=text)

    def _end_call(self, status: Any) -> None:
        if self._call is None:
            return
        if self._input is not None:
            self._add_arguments(self._input.finish())
        call, text = self.response.output[self._call], "".join(self._arguments)
        self._arguments.clear()
        if isinstance(call, OutputCustomCall):
            call.input = text
            self._item_event("response.custom_tool_call_input.done", self._call, input=text)
        else:
            assert isinstance(call, OutputCall)
            call.arguments = text
            self._item_event("response.function_call_arguments.done", self._call, name=call.name, arguments=text)
        self._end_item(self._call, status)
        self._call = self._input = None

    def _end(self, *, incomplete: bool) -> None:
        if self._message is None and self.response.output in ([], [self._search]):  # all is white space
            self._begin_message()
            assert self._message is not None
            self._texts.append(self._held)
            self._part(self._message).logprobs += self._held_logprobs
            self._text_delta(self._message, self._held, self._held_logprobs)
        self._end_items("incomplete" if incomplete else "completed")
        self.response.context = self._count.context()
        usage = self._count.usage()
        self.response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=usage.completion_tokens_details.reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )
        if incomplete:
            self.response.incomplete_details = IncompleteDetails()
            self.response.status = "incomplete"
        else:
            self.response.status = "completed"
            self.response.completed_at = int(time.time())

    def _end_items(self, status: ItemStatus) -> None:
        """Ends all open items: at most one thought, one message and one call."""
        self._end_thought(status)
        self._end_message(status)
        self._end_call(status)

    def _reasoning(self, place: int) -> OutputReasoning:
        reasoning = self.response.output[place]
        assert isinstance(reasoning, OutputReasoning)
        return reasoning

    def _part(self, place: int) -> OutputText:
        message = self.response.output[place]
        assert isinstance(message, OutputMessage)
        return message.content[0]

    def _item(self, place: int) -> dict[str, Any]:
        return self.response.output[place].model_dump()

    def _end_item(self, place: int, status: Any) -> None:
        self.response.output[place].status = status
        self._event("response.output_item.done", output_index=place, item=self._item(place))

    def _item_event(self, kind: str, place: int, **fields: Any) -> None:
        self._event(kind, item_id=self.response.output[place].id, output_index=place, **fields)

    def _whole_event(self, kind: str) -> None:
        if self._streams:
            self._event(kind, response=self.response.model_dump())

    def _event(self, kind: str, **fields: Any) -> None:
        if not self._streams:
            return
        data = event_json({"type": kind, "sequence_number": self._number, **fields})
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._number += 1


def _place(request: ResponseRequest) -> ConversationPlace | None:
    place = request.conversation
    return ConversationPlace(id=place) if isinstance(place, str) else place


def _blank_response(request: ResponseRequest, head: AnswerHead, job: Job | None) -> ResponseObject:
    """Returns the response before the first delta, with the request's fields or their defaults.

    job: its sampling is the model's where the request does not say; None: it is OpenAI's.
    """
    sampling = None if job is None else job.requests[0].sampling
    choice = request.tool_choice
    return ResponseObject(
        id=head.response_id,
        created_at=head.created,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        temperature=_given(request.temperature) if sampling is None else sampling.temperature,
        text=_text_config(request),
        tool_choice=choice if isinstance(choice, str) else choice.model_dump() if choice is not None else "auto",
        tools=shown(request.tools or ()),
        top_logprobs=request.top_logprobs or 0,
        top_p=_given(request.top_p) if sampling is None else sampling.top_p,
        user=request.user,
        prompt_cache_key=request.prompt_cache_key,
        safety_identifier=request.safety_identifier,
        metadata=request.metadata or {},
        reasoning=_reasoning(request),
        store=request.store or False,
        background=request.background or False,
        truncation=request.truncation or "disabled",
        previous_response_id=request.previous_response_id,
        conversation=_place(request),
    )


def _given(value: float | None) -> float:
    return 1.0 if value is None else value


def _text_config(request: ResponseRequest) -> dict[str, Any]:
    given = {} if request.text is None else request.text.model_dump(by_alias=True, exclude_none=True)
    return {"format": {"type": "text"}, **given}


def _reasoning(request: ResponseRequest) -> dict[str, str | int | None]:
    given = request.reasoning
    shown: dict[str, str | int | None] = {"effort": given.effort if given else None, "summary": None}
    return shown if given is None or given.max_tokens is None else {**shown, "max_tokens": given.max_tokens}
