"""A message from a worker to an ingress: parts of several requests' outputs.

A message costs many times what a token in it does, so a worker sends the tokens of all requests of one ingress
together, on one of their streams (`app.engine.stream` says on which). Messages are in order within a stream only, and a
stream that is closed loses the messages on their way. So a part says where in its output it begins. It may come twice,
or before parts that precede it, and `Assembler` restores the output. Knows neither Ray nor the engine.
"""

from collections import deque
from typing import NamedTuple

from app.messages.outputs import TokenDelta


class Part(NamedTuple):
    """A piece of one request's output. A named tuple, because there is one for every token."""

    request_id: str
    start: int
    """How many of the output's tokens precede it."""
    delta: TokenDelta


Bundle = tuple[Part, ...]
"""One message."""


class Assembler:
    """Makes one output's parts into its deltas: every token once and in order."""

    __slots__ = ("_deltas", "_early", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0
        self._deltas: deque[TokenDelta] = deque()
        self._early: list[Part] = []

    def put(self, part: Part) -> None:
        """Adds a part. Tokens that came before are dropped; a part that is early waits for those that precede it."""
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
        """The next delta, or None."""
        return self._deltas.popleft() if self._deltas else None

    def _append(self, delta: TokenDelta) -> None:
        self._tokens += len(delta.token_ids)
        self._deltas.append(delta)
