"""Observers of generated tokens, and the one generator that calls them.

It knows neither the observers (`app.interface.generate.sequences` lists them) nor what they do.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import NamedTuple

from app.messages.outputs import Generate, TokenDelta
from app.messages.requests import GenerateRequest


def _ignored(error: BaseException | None) -> None:
    """The default for observers that ignore how a sequence ends."""


class Observer(NamedTuple):
    """Observes one sequence. Neither function may raise or block."""

    saw: Callable[[TokenDelta], None]
    """Called with each delta, before the reader gets it."""
    ended: Callable[[BaseException | None], None] = _ignored
    """Called once after the last delta, with the error that ended the sequence; None: it is complete."""


Observe = Callable[[GenerateRequest], Observer]
"""Called when a sequence begins."""
Permit = Callable[[GenerateRequest], Awaitable[GenerateRequest]]
"""Called before a sequence begins; returns the request for the worker."""
Hold = Callable[[], AbstractContextManager[None]]
"""Entered by the task that reads a sequence, until the sequence has ended."""


def observed(
    generate: Generate, observers: Sequence[Observe], permit: Permit | None = None, hold: Hold = nullcontext
) -> Generate:
    """Wraps `generate` with observers, which are called in order with each delta."""

    async def passed(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        with hold():
            if permit is not None:
                request = await permit(request)
            watching = [observe(request) for observe in observers]
            looks = [observer.saw for observer in watching]
            try:
                async with aclosing(generate(request)) as deltas:
                    async for delta in deltas:
                        for saw in looks:
                            saw(delta)
                        yield delta
            except BaseException as error:
                for observer in watching:
                    observer.ended(error)
                raise
            for observer in watching:
                observer.ended(None)

    return passed
