"""Counters of an engine's work, and its generation speed. Knows nothing of requests or steps."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

RATE_WINDOW_S: Final = 1.0


class EngineStatistics(NamedTuple):
    """An engine's state after its last step. Token counts are totals since the engine's start.

    A named tuple, as `TokenDelta` is: the engine makes one per step.
    """

    running: int
    """Sequences with KV pages: requests, and each branch of a search."""
    waiting: int
    """Requests that are not admitted yet, and preempted ones; without those of batches."""
    pages_used: int
    """KV pages that sequences hold; a shared one counts once."""
    pages_free: int
    """KV pages without a holder, cached ones included."""
    pages_cached: int
    """KV pages in the prefix cache, held or free."""
    steps: int
    computed_tokens: int
    """Tokens that the model computed: prompts, outputs, and recomputation after preemptions."""
    cached_tokens: int
    """Prompt tokens that the prefix cache had."""
    generated_tokens: int
    preemptions: int
    """How often a sequence, or a search's group, was preempted; without those of batches."""
    interruptions: int
    """How often a step of batches has ended early, because a request came that somebody waits for."""
    begun: int
    """Requests that have started to run; without those of batches."""
    queued_s: float
    """Total queueing time of those requests, in seconds."""
    drafts: Mapping[str, tuple[int, int]]
    """Draft tokens that were computed, and those of them that were accepted, by kind (speculative/speculation.py)."""
    drafts_failed: bool
    """Whether a model drafts no more, because it has failed."""
    generated_tokens_per_s: float
    """Rate of the last full second of work; 0 when idle."""
    healthy: bool
    """Whether the engine accepts requests: False once its thread has ended or steps fail one after another."""

    @property
    def drafted_tokens(self) -> int:
        """Draft tokens of all kinds that were computed."""
        return sum(drafted for drafted, _ in self.drafts.values())

    @property
    def accepted_tokens(self) -> int:
        """Draft tokens of all kinds that were accepted."""
        return sum(accepted for _, accepted in self.drafts.values())


class TokenRate:
    """Tokens per second of wall time, measured over windows of RATE_WINDOW_S of work."""

    __slots__ = ("_since_s", "_tokens_then", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        """Rate of the last full window."""
        self.restart(0)

    def restart(self, tokens: int) -> None:
        """Begins a window; `tokens` is the total so far."""
        self._since_s = time.perf_counter()
        self._tokens_then = tokens

    def add(self, tokens: int) -> None:
        """Updates the rate after a step; `tokens` is the total so far."""
        elapsed_s = time.perf_counter() - self._since_s
        if elapsed_s >= RATE_WINDOW_S:
            self.per_s = (tokens - self._tokens_then) / elapsed_s
            self.restart(tokens)


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine's start, as EngineStatistics has them."""

    steps: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    interruptions: int = 0
    begun: int = 0
    queued_s: float = 0.0
    rate: TokenRate = field(default_factory=TokenRate)
    """Of the generated tokens."""
