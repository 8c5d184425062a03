"""The parts that all answers share: collected into one body, or written as server-sent events.

It knows no family's format: those are in the families' files (chat, completions, responses, embeddings).
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.deltas import Deltas
from app.interface.generate.answers.early import Early
from app.interface.request.errors import ApiError
from app.interface.wire.responses import OutputFileSearch


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The metadata of an answer."""

    response_id: str
    created: int
    """Unix seconds."""
    model: str
    search: OutputFileSearch | None = None
    """The search in collections before the answer."""
    early: Early | None = None
    """What the stream has said before, if it was opened before the answer was planned."""


class BodyWriter(Protocol):
    """Collects deltas into one answer."""

    def add(self, deltas: Sequence[ChoiceDelta]) -> None: ...

    def body(self) -> bytes:
        """Returns the whole answer as JSON, after the last delta."""


class EventWriter(Protocol):
    """Writes deltas as server-sent events: begin, add, ..., and then end or fail."""

    def begin(self) -> bytes:
        """Returns the events before the first delta."""

    def add(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Returns the events of these deltas; may be empty."""

    def end(self) -> bytes:
        """Returns the events after the last delta; may be empty."""

    def fail(self, error: ApiError) -> bytes:
        """Returns the events that end a failed stream."""


Writer = TypeVar("Writer", bound=EventWriter, covariant=True)


class Keeper(Protocol):
    """Stores an answer for its user."""

    async def complete(self) -> None:
        """Stores the complete answer before its end is sent; an error raised here is sent instead."""

    def abandon(self) -> None:
        """Handles a failed answer or a disconnected client. Does nothing after `complete`."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that is sent once it is complete."""

    body: Callable[[], Coroutine[Any, Any, bytes]]
    """Waits for the worker and returns JSON. Raises what the worker raises."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer(Generic[Writer]):
    """An answer that is sent as events while the worker generates it."""

    deltas: Deltas
    writer: Writer
    keeper: Keeper | None = None

    @property
    def ended(self) -> Callable[[], None] | None:
        """Called by the sender after the end of the stream; None: nothing to call."""
        return None if self.keeper is None else self.keeper.abandon


class Running(Protocol):
    """An answer that continues without its client, implemented in `app.interface.generate.answers.running`."""

    async def wait_until_begun(self) -> None:
        """Returns when the worker has begun. Raises what the worker raises before that."""

    def end_wait(self) -> None:
        """Does not wait: from now on a failure becomes an event. Raises what the worker has raised."""

    def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yields server-sent events from number `after` + 1 until the last."""

    def body(self) -> bytes:
        """Returns the answer so far as JSON."""


@dataclass(frozen=True, slots=True)
class DetachedAnswer:
    """An answer that continues without its client."""

    start: Callable[[Callable[[Exception], ApiError]], Coroutine[Any, Any, Running]]
    """Starts the answer, given how to convert its failures. Raises ApiError, AccountsError."""
    is_streamed: bool
    """Whether its client wants a stream."""


Answer = WholeAnswer | StreamedAnswer[EventWriter] | DetachedAnswer


async def collected(writer: BodyWriter, deltas: Deltas, keeper: Keeper | None = None) -> bytes:
    """Waits for the last delta and returns the body. Raises what the deltas and the keeper raise."""
    async with aclosing(deltas):
        async for batch in deltas:
            writer.add(batch)
    if keeper is not None:
        await keeper.complete()
    return writer.body()


async def events(
    answer: StreamedAnswer[EventWriter], first: Sequence[ChoiceDelta], as_api_error: Callable[[Exception], ApiError]
) -> AsyncGenerator[bytes, None]:
    """Yields server-sent events, joining those that are ready at once. A failure becomes the last event."""
    writer = answer.writer
    async with aclosing(answer.deltas) as rest:
        yield writer.begin() + writer.add(first)
        try:
            async for batch in rest:
                # Tokens may add no text yet: held back text, or the first bytes of a character.
                if data := writer.add(batch):
                    yield data
            if answer.keeper is not None:  # before the client learns of the end, and continues
                await answer.keeper.complete()
        except Exception as error:
            yield writer.fail(as_api_error(error))
            return
        if data := writer.end():
            yield data
