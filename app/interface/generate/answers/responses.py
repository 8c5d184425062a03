"""A response as one answer or as events. Knows nothing of how its items are made."""

from collections.abc import Sequence

from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.response_builder import ResponseBuilder
from app.interface.generate.planning.job import Job
from app.interface.request.errors import ApiError
from app.interface.wire.responses import ResponseObject, ResponseRequest, ResponseStatus


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
