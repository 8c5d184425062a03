"""A response as one answer or as events. Knows nothing of how its items are made."""

import time
from collections.abc import Sequence

from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.early import Opened
from app.interface.generate.answers.response_builder import ResponseBuilder
from app.interface.generate.planning.job import Job
from app.interface.request.errors import ApiError
from app.interface.wire.responses import OutputFileSearch, ResponseObject, ResponseRequest, ResponseStatus


class EarlyResponse:
    """The beginning of a streamed response. If it searches, the stream opens with the first events of that."""

    def __init__(self, request: ResponseRequest, response_id: str) -> None:
        self._request = request
        self._head = AnswerHead(response_id, int(time.time()), request.model)
        self._builder: ResponseBuilder | None = None
        """Set if anything was written."""
        self._search_id: str | None = None
        self._shown_search: OutputFileSearch | None = None
        """The search that the client was told of."""

    @property
    def is_searching(self) -> bool:
        return self._search_id is not None

    @property
    def opened(self) -> Opened | None:
        return None if self._builder is None else Opened(self._builder.events_written, self._head.created)

    def searching(self, search_id: str | None) -> None:
        """Notes the search, unless the answer runs in the background, which keeps its events from its own beginning."""
        self._search_id = None if self._request.background else search_id

    def begin(self) -> bytes:
        if self._search_id is None:
            return b""
        builder = self._begun()
        self._shown_search = OutputFileSearch(id=self._search_id, queries=[], results=[])
        builder.begin_search(self._shown_search)
        return builder.pop_events()

    def fail(self, error: ApiError) -> bytes:
        builder = self._begun()
        if self._shown_search is not None:
            builder.leave_search(self._shown_search)
        builder.fail(error)
        return builder.pop_events()

    def _begun(self) -> ResponseBuilder:
        if self._builder is None:
            self._builder = ResponseBuilder(self._request, self._head, None, streams=True)
            self._builder.begin()
        return self._builder


class ResponseBody:
    """Collects a response."""

    def __init__(self, request: ResponseRequest, head: AnswerHead, job: Job) -> None:
        self._builder = ResponseBuilder(request, head, job, streams=False)

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._builder.add(deltas)

    def so_far(self) -> ResponseObject:
        """Returns the response; `incomplete` before its last delta."""
        return self._builder.so_far()

    def body(self) -> bytes:
        """Returns a `ResponseObject` as JSON."""
        return self._builder.response.model_dump_json().encode()


class ResponseEvents:
    """Writes a response as events: an `EventWriter`."""

    def __init__(self, request: ResponseRequest, head: AnswerHead, job: Job) -> None:
        self._builder = ResponseBuilder(request, head, job, streams=True)

    def begin(self) -> bytes:
        """Returns `response.created`, and `response.in_progress` or, if progress was requested, `response.queued`."""
        self._builder.begin()
        return self._builder.pop_events()

    def add(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        self._builder.add(deltas)
        return self._builder.pop_events()

    def so_far(self, status: ResponseStatus = "incomplete") -> ResponseObject:
        """Returns the response; before its last delta with this status."""
        return self._builder.so_far(status)

    def cancel(self) -> bytes:
        """Returns the events that end the open item and the response after the client cancelled it."""
        self._builder.cancel()
        return self._builder.pop_events()

    def end(self) -> bytes:
        """Returns `response.completed` or `response.incomplete`."""
        self._builder.end()
        return self._builder.pop_events()

    def fail(self, error: ApiError) -> bytes:
        """Returns the events that end the open item, and `response.failed`."""
        self._builder.fail(error)
        return self._builder.pop_events()
