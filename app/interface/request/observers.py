"""Who looks on while a worker generates, and the one generator that a token passes on its way to an answer.

It knows neither who they are (`app.interface.generate.sequences` has the list) nor what they do with what they see.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import NamedTuple

from app.messages.outputs import Generate, TokenDelta
from app.messages.requests import GenerateRequest


def _ignored(error: BaseException | None) -> None:
    """For observers that do not ask how a sequence ends."""


class Observer(NamedTuple):
    """Looks at one sequence. Neither function may raise or wait."""

    saw: Callable[[TokenDelta], None]
    """Called with each delta, before the reader gets it."""
    ended: Callable[[BaseException | None], None] = _ignored
    """Called once after the last delta, with what ended the sequence; None: it is complete."""


Observe = Callable[[GenerateRequest], Observer]
"""Called as a sequence begins."""
Permit = Callable[[GenerateRequest], Awaitable[GenerateRequest]]
"""Called before a sequence begins; gives the request that the worker gets."""
Hold = Callable[[], AbstractContextManager[None]]
"""Entered by the task that reads a sequence, until the sequence has ended."""


def observed(
    generate: Generate, observers: Sequence[Observe], permit: Permit | None = None, hold: Hold = nullcontext
) -> Generate:
    """`generate`, with observers, which see each delta in their order."""

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
