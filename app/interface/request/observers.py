"""Observers of generated tokens, and the one place that calls them.

They see what a sequence's reader uses: a step with drafts, or a slow reader, may bring more tokens than the answer has
before a stop string. It knows neither the observers (`app.interface.generate.sequences` lists them) nor what they do.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from typing import NamedTuple

from app.messages.outputs import Generate, TokenDelta
from app.messages.requests import GenerateRequest


def _ignored(error: BaseException | None) -> None:
    """The default for observers that ignore how a sequence ends."""


class Observer(NamedTuple):
    """Observes one sequence. Neither function may raise or block."""

    saw: Callable[[TokenDelta], None]
    """Called with what the reader uses of each delta; a delta that the reader has cut has neither scores nor a finish
    reason."""
    ended: Callable[[BaseException | None], None] = _ignored
    """Called once after the last delta, with the error that ended the sequence; None: it is complete, or was cut."""


Observe = Callable[[GenerateRequest], Observer]
"""Called when a sequence begins."""
Permit = Callable[[GenerateRequest], Awaitable[GenerateRequest]]
"""Called before a sequence begins; returns the request for the worker."""
Hold = Callable[[], AbstractContextManager[None]]
"""Entered by the task that reads a sequence, until the sequence has ended."""


class Observed:
    """A model's sequences with observers, which are called in order."""

    def __init__(
        self,
        generate: Generate,
        observers: Sequence[Observe] = (),
        permit: Permit | None = None,
        hold: Hold = nullcontext,
    ) -> None:
        self._generate = generate
        self._observers = observers
        self._permit = permit
        self._hold = hold

    @asynccontextmanager
    async def begun(
        self, request: GenerateRequest
    ) -> AsyncIterator[tuple[AsyncGenerator[TokenDelta, None], Callable[[TokenDelta], None]]]:
        """Begins a sequence; gives its deltas, and what the reader calls with all that it uses of each."""
        with self._hold():
            if self._permit is not None:
                request = await self._permit(request)
            # The observers are told of the end first: a reader that has all it wants does not wait for the worker.
            async with aclosing(self._generate(request)) as deltas:
                with _watching([observe(request) for observe in self._observers]) as saw:
                    yield deltas, saw

    async def __call__(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Yields the deltas of a sequence to a reader that uses all of them; it is a `Generate`."""
        async with self.begun(request) as (deltas, saw):
            async for delta in deltas:
                saw(delta)
                yield delta


@contextmanager
def _watching(observers: Sequence[Observer]) -> Iterator[Callable[[TokenDelta], None]]:
    looks = [observer.saw for observer in observers]

    def saw(delta: TokenDelta) -> None:
        for look in looks:
            look(delta)

    try:
        yield saw
    except BaseException as error:
        for observer in observers:
            observer.ended(error)
        raise
    for observer in observers:
        observer.ended(None)
