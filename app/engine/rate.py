"""How fast an engine makes tokens while it works."""

import time
from typing import Final

RATE_WINDOW_S: Final = 1.0


class TokenRate:
    """Tokens per second of wall time, over windows of a second of work."""

    __slots__ = ("_since", "_tokens_then", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        self.restart(0)

    def restart(self, tokens: int) -> None:
        """Begins a window; `tokens` is the total so far."""
        self._since = time.perf_counter()
        self._tokens_then = tokens

    def add(self, tokens: int) -> None:
        """A step has ended; `tokens` is the total so far."""
        elapsed_s = time.perf_counter() - self._since
        if elapsed_s >= RATE_WINDOW_S:
            self.per_s = (tokens - self._tokens_then) / elapsed_s
            self.restart(tokens)
