"""A message from a worker to an ingress: parts of several requests' outputs.

A message costs many times what a token in it does, so a worker sends the tokens of all requests of one ingress
together, on one of their streams (`app.engine.stream` says on which). Messages are in order within a stream only, and
closing a stream loses messages on their way. So a part says where in its output it begins. It may arrive twice or out
of order, and `Assembler` restores the output. Knows neither Ray nor the engine.
"""

from collections import deque
from typing import NamedTuple

from app.messages.outputs import TokenDelta


class Part(NamedTuple):
    """A piece of one request's output. A named tuple, because each token has one."""

    request_id: str
    start: int
    """How many of the output's tokens precede it."""
    delta: TokenDelta


Bundle = tuple[Part, ...]


class Assembler:
    """Restores one output's deltas from its parts: every token once and in order."""

    __slots__ = ("_deltas", "_early", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0
        self._deltas: deque[TokenDelta] = deque()
        self._early: list[Part] = []

    def put(self, part: Part) -> None:
        """Adds a part. Duplicate tokens are dropped; an early part waits for those that precede it."""
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
        """Takes the next delta, or None."""
        return self._deltas.popleft() if self._deltas else None

    def _append(self, delta: TokenDelta) -> None:
        self._tokens += len(delta.token_ids)
        self._deltas.append(delta)
