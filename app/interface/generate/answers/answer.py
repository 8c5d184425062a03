"""The procedure that all answers of a worker share: collected into one body, or written as server-sent events.

It knows no family's shapes: those are in the families' files (chat, completions, responses, embeddings).
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.deltas import Deltas
from app.interface.request.errors import ApiError


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What an answer says about itself."""

    response_id: str
    created: int
    """Unix seconds."""
    model: str


class BodyWriter(Protocol):
    """Collects deltas into one answer."""

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Takes what has come since the last call."""

    def body(self) -> bytes:
        """The whole answer as JSON, after the last delta."""


class EventWriter(Protocol):
    """Writes deltas as server-sent events. A stream is begin, add, ..., and then end or fail."""

    def begin(self) -> bytes:
        """The events before the first delta."""

    def add(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The events of these deltas; may be empty."""

    def end(self) -> bytes:
        """The events after the last delta; may be empty."""

    def fail(self, error: ApiError) -> bytes:
        """The events that end a stream which failed."""


Writer = TypeVar("Writer", bound=EventWriter, covariant=True)


class Keeper(Protocol):
    """Stores an answer for its user."""

    async def complete(self) -> None:
        """All deltas have come; what this raises is the answer in place of its end."""

    def leave(self) -> None:
        """The answer has failed, or its client has gone. Does nothing after `complete`."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that is sent when it is complete."""

    body: Callable[[], Coroutine[Any, Any, bytes]]
    """Waits for the worker and gives JSON. Raises what the worker raises."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer(Generic[Writer]):
    """An answer that is sent as events while the worker generates it."""

    deltas: Deltas
    writer: Writer
    keeper: Keeper | None = None

    @property
    def ended(self) -> Callable[[], None] | None:
        """To be called after the stream's end, by who sends it; None: nobody wants to know."""
        return None if self.keeper is None else self.keeper.leave


class Running(Protocol):
    """An answer that goes on without its client: `app.interface.generate.answers.running` has it."""

    async def begun(self) -> None:
        """Returns when the worker has begun. Raises what the worker raises before that."""

    def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Server-sent events from the one after that number until the last."""

    def body(self) -> bytes:
        """The answer as it is now, as JSON."""


@dataclass(frozen=True, slots=True)
class DetachedAnswer:
    """An answer that goes on without its client."""

    start: Callable[[Callable[[Exception], ApiError]], Coroutine[Any, Any, Running]]
    """From how failures are told to the answer, which runs from then on. Raises ApiError, AccountsError."""
    is_streamed: bool
    """Whether its client wants to see it while it grows."""


Answer = WholeAnswer | StreamedAnswer[EventWriter] | DetachedAnswer


async def collected(writer: BodyWriter, deltas: Deltas, keeper: Keeper | None = None) -> bytes:
    """Waits for the last delta and gives the body. Raises what the deltas and the keeper raise."""
    async with aclosing(deltas):
        async for batch in deltas:
            writer.add(batch)
    if keeper is not None:
        await keeper.complete()
    return writer.body()


async def events(
    answer: StreamedAnswer[EventWriter], first: Sequence[ChoiceDelta], as_api_error: Callable[[Exception], ApiError]
) -> AsyncGenerator[bytes, None]:
    """Server-sent events; all that are ready at once go out in one piece. A failure is the last of them."""
    writer = answer.writer
    async with aclosing(answer.deltas) as rest:
        yield writer.begin() + writer.add(first)
        try:
            async for batch in rest:
                # Tokens may come and show nothing: held back text, or the first bytes of a character.
                if data := writer.add(batch):
                    yield data
            if answer.keeper is not None:  # before the client hears of the end, and goes on
                await answer.keeper.complete()
        except Exception as error:
            yield writer.fail(as_api_error(error))
            return
        if data := writer.end():
            yield data
