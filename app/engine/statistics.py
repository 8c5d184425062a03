"""What an engine counts of its own work, and how fast it generates. Knows nothing of requests or steps."""

import time
from dataclasses import dataclass
from typing import Final

RATE_WINDOW_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine was doing when its last step ended. Counts of tokens are since the engine's start."""

    running: int
    """Sequences with KV pages: requests, and each branch of a search."""
    waiting: int
    """Requests that are not admitted yet, and preempted ones."""
    pages_used: int
    """KV pages that sequences hold; a shared one counts once."""
    pages_free: int
    """KV pages that no sequence holds, including cached ones."""
    pages_cached: int
    """KV pages that a later request may find in the prefix cache, held or free."""
    steps: int
    """Steps computed."""
    computed_tokens: int
    """Tokens that went through the model: prompts, outputs, and what is computed again after a preemption."""
    cached_tokens: int
    """Prompt tokens that did not, because the prefix cache had them."""
    generated_tokens: int
    """Output tokens."""
    preemptions: int
    """How often a sequence, or a search's group, had to give its pages back."""
    begun: int
    """Requests that have run, since the start."""
    queued_s: float
    """How long all of them together have waited for that."""
    guessed_tokens: int
    """Tokens that were computed as guesses of outputs."""
    right_guesses: int
    """How many of those were right."""
    generated_tokens_per_s: float
    """Over the last full second of work; 0 when idle."""
    healthy: bool
    """Whether the engine accepts requests: False once its thread has ended or steps fail one after another."""


class TokenRate:
    """Tokens per second of wall time, measured over windows of RATE_WINDOW_S of work."""

    __slots__ = ("_since_s", "_tokens_then", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        """Of the last full window."""
        self.restart(0)

    def restart(self, tokens: int) -> None:
        """Begins a window; `tokens` is the total so far."""
        self._since_s = time.perf_counter()
        self._tokens_then = tokens

    def add(self, tokens: int) -> None:
        """A step has ended; `tokens` is the total so far."""
        elapsed_s = time.perf_counter() - self._since_s
        if elapsed_s >= RATE_WINDOW_S:
            self.per_s = (tokens - self._tokens_then) / elapsed_s
            self.restart(tokens)
