"""What a message from a worker to an ingress is made of: parts of several requests' outputs.

A message costs many times what a token in it does, so a worker sends what a step made for all requests of one ingress
together, on one of their streams (`app.engine.stream`). Streams are ordered each for itself only, and one that is given
up takes with it what was on its way: a part therefore says where in the output it begins, it may come twice or too
early, and `Assembler` puts an output together. Knows neither Ray nor the engine.
"""

from collections import deque
from typing import NamedTuple

from app.messages.outputs import TokenDelta


class Part(NamedTuple):
    """A piece of one request's output; a named tuple, for there is one for every token."""

    request_id: str
    start: int
    """How many of the output's tokens come before it."""
    delta: TokenDelta


Bundle = tuple[Part, ...]


class Assembler:
    """One output's parts -> its deltas, every token once and in order."""

    __slots__ = ("_deltas", "_early", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0
        self._deltas: deque[TokenDelta] = deque()
        self._early: list[Part] = []

    def put(self, part: Part) -> None:
        """Takes a part in. What is there already is left out; what comes too early waits for what it lacks."""
        if part.start > self._tokens:
            self._early.append(part)
            return
        if part.start == self._tokens:
            self._append(part.delta)
        else:
            known = self._tokens - part.start
            delta = part.delta
            if known < len(delta.token_ids) or delta.finish_reason is not None:
                self._append(delta._replace(token_ids=delta.token_ids[known:]))
        if self._early:
            early, self._early = sorted(self._early, key=lambda part: part.start), []
            for each in early:
                self.put(each)

    def take(self) -> TokenDelta | None:
        """The next delta, if it is there."""
        return self._deltas.popleft() if self._deltas else None

    def _append(self, delta: TokenDelta) -> None:
        self._tokens += len(delta.token_ids)
        self._deltas.append(delta)
