"""`"truncation": "auto"`: drops the oldest part of a conversation that does not fit the context with its answer.

Whole turns are dropped, oldest first; then the oldest steps of the assistant in the newest turn, but never its
question. Leading system messages stay, and a tool's result never stays without its call. It knows no tokens: planning
decides whether a conversation fits.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile

from app.interface.generate.planning.job import Job
from app.interface.request.errors import ApiError
from app.interface.text.instructions import is_system
from app.interface.wire.chat import Message


def newest_that_fit(messages: Sequence[Message], plan: Callable[[Sequence[Message]], Job], wanted_tokens: int) -> Job:
    """Returns the plan of the longest suffix of the conversation that leaves room for `wanted_tokens`.

    plan: raises ApiError `context_length_exceeded` if a conversation does not fit. If even the shortest leaves less
    room, that one is planned. Plans about log2 of the number of messages. Raises what `plan` raises.
    """
    found: dict[int, Job] = {}
    shorter = _Shorter(messages)

    def fits(number: int) -> bool:
        try:
            found[number] = plan(shorter.conversation(number))
        except ApiError as error:
            if error.code != "context_length_exceeded":
                raise
            return False
        return min(request.max_new_tokens for request in found[number].requests) >= wanted_tokens

    if fits(0):
        return found[0]
    number = bisect_left(range(len(shorter)), True, lo=1, key=fits)
    if number == len(shorter):
        return plan(shorter.conversation(number - 1))
    return found[number]


class _Shorter:
    """Ever shorter suffixes of a conversation; number 0 is whole."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._system = list(takewhile(is_system, messages))
        self._rest = messages[len(self._system) :]
        users = [i for i, message in enumerate(self._rest) if message.role == "user"]
        self._question = users[-1] if users else None
        begin = 0 if self._question is None else self._question + 1
        steps = [i for i in range(begin + 1, len(self._rest)) if self._rest[i].role == "assistant"]
        self._starts = [0, *(i for i in users if i > 0), *steps]

    def __len__(self) -> int:
        return len(self._starts)

    def conversation(self, number: int) -> list[Message]:
        """Returns the conversation without the `number` oldest pieces."""
        start = self._starts[number]
        question = self._question
        kept = [self._rest[question]] if question is not None and start > question else []
        return [*self._system, *kept, *self._rest[start:]]
