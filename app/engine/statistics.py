"""What an engine counts of its own work."""

import time
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine was doing when its last step ended."""

    running: int
    """Sequences with KV pages: requests, and each of a search's branches."""
    waiting: int
    """Requests not admitted yet, and preempted ones."""
    pages_used: int
    pages_free: int
    steps: int
    pages_cached: int
    """Pages that a later request may find in the prefix cache; those of them that nobody uses count as free too."""
    computed_tokens: int
    """Tokens that went through the model since the start: prompts, outputs, and what preemptions repeat."""
    cached_tokens: int
    """Prompt tokens since the start that did not, because the prefix cache had them."""
    generated_tokens: int
    """Output tokens since the start."""
    preemptions: int
    guessed_tokens: int
    """Tokens that were computed as guesses of outputs since the start."""
    right_guesses: int
    """Those of them that were right."""
    generated_tokens_per_s: float
    """Over the last full second of work; 0 when idle."""
    healthy: bool
    """Whether it takes requests: False once its thread has ended or steps fail one after another."""
