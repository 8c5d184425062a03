"""Budgets the prompt tokens of a step by time: as many as fit a set time, which is longer while no output is decoded.

A fixed number that suits a small model would pause the streams of a large one, and newly arrived requests, for seconds.
The time per token is learned from steps with many tokens, where it hardly depends on their number.

With experts, a step also reads all experts that its tokens choose, and n tokens choose nearly as many distinct experts
as 2n, if n is small. Reading and multiplying overlap: a step takes as long as the longer one. The read time is learned
from steps with few tokens. Knows neither sequences nor which tokens choose which experts.
"""

from typing import Final

from app.engine.expert_reads import ExpertReads

_LEAST_TOKENS: Final = 64
"""Fewest tokens of a step to learn from; smaller steps spend most of the time on reading the weights."""
_LEAST_CHUNK: Final = 8
"""The smallest budget: fewer rows would waste the step on any machine."""
_LEAST_ALONE: Final = 128
"""The smallest budget while nothing decodes. Prefill with steps of 128 tokens takes 1.06 times as long as with 512,
with 256 1.01 (embedded model, Zen 4, 4,096 tokens)."""
_LEAST_EXPERT_ROWS: Final = 16
"""Rows per expert in the smallest budget while nothing decodes: AMX multiplies this many at a time. Without AMX 8 are
as good (docs/tuning.md)."""
_PAUSES_ALONE: Final = 2.5
"""How many pauses a step may take while nothing decodes; a new request then waits for at most two such steps."""
_MOST_BATCH_TOKENS: Final = 1 << 20
"""More than any step has."""
_MOST_TIMES: Final = 4.0
_RATE: Final = 0.3
"""Weight of a new measurement in the running mean."""
_READ_TOKENS: Final = 4.0
"""How many rows are multiplied in the time that a one-row step takes to read its weights, until steps were measured
(3.7 with Qwen3-30B-A3B's shape on one core of Zen 4, docs/tuning.md)."""
_LEAST_READ_TOKENS: Final = 1.0
_MOST_READ_TOKENS: Final = 60.0
_READS_LONGER: Final = 1.2
"""If reading takes this many times as long as multiplying, the step's time counts as read time."""


class PromptPace:
    """The budget of prompt tokens per step."""

    __slots__ = ("_batch_tokens", "_experts", "_most_tokens", "_pause_s", "_read_tokens", "_seconds_per_token")

    def __init__(self, most_tokens: int, pause_s: float | None, experts: ExpertReads | None = None) -> None:
        """Raises ValueError for a budget below one token.

        most_tokens: the budget until a step was measured, and its upper bound afterwards.
        pause_s: how long a step's prompt tokens may take, in seconds; None: the budget is always most_tokens.
        experts: None if the model has none.
        """
        if most_tokens < 1:
            raise ValueError(f"prompt_chunk_tokens must be at least 1, not {most_tokens}")
        self._most_tokens = most_tokens
        self._pause_s = pause_s
        self._experts = experts
        self._seconds_per_token = 0.0
        self._read_tokens = _READ_TOKENS
        self._batch_tokens: int | None = None

    def record(self, tokens: int, seconds: float) -> None:
        """Learns that a step with `tokens` tokens took `seconds`."""
        experts = self._experts
        work = float(tokens)
        if experts is not None and tokens >= _LEAST_TOKENS:
            work = max(work, self._read_tokens * experts.relative(tokens))
        elif experts is not None and self._seconds_per_token:
            self._learn_reads(tokens, seconds, experts)
        taken = seconds / work
        if tokens < _LEAST_TOKENS and taken >= self._seconds_per_token:
            return  # small steps take longer per token, so only a shorter time teaches anything
        if not self._seconds_per_token:
            self._seconds_per_token = taken
        taken = min(taken, _MOST_TIMES * self._seconds_per_token)  # the machine, or this process, may have been paused
        self._seconds_per_token += _RATE * (taken - self._seconds_per_token)

    def _learn_reads(self, tokens: int, seconds: float, experts: ExpertReads) -> None:
        """Updates the read time from a step: either its time, or an upper bound."""
        multiplied = seconds / self._seconds_per_token
        found = min(multiplied / experts.relative(tokens), _MOST_TIMES * self._read_tokens)
        if multiplied < _READS_LONGER * tokens and found > self._read_tokens:
            return
        found = min(max(found, _LEAST_READ_TOKENS), _MOST_READ_TOKENS)
        self._read_tokens += _RATE * (found - self._read_tokens)

    @property
    def seconds_per_token(self) -> float:
        """Measured time of prefill; 0 until a step was measured."""
        return self._seconds_per_token

    @property
    def chunk_tokens(self) -> int:
        """The budget while others decode: prompt tokens that can be computed within the pause."""
        return min(self._fitting(1.0, _LEAST_CHUNK), self._most_tokens)

    def interrupted(self) -> None:
        """Learns that a step of batches has ended early: what it had computed is lost, so the next ones are short."""
        self._batch_tokens = self.chunk_tokens

    def batch_completed(self) -> None:
        """Learns that a step of batches was computed: the next one may be longer."""
        if self._batch_tokens is not None:
            self._batch_tokens = min(2 * self._batch_tokens, _MOST_BATCH_TOKENS)

    @property
    def batch_tokens(self) -> int | None:
        """The budget of a step of batches, where nobody waits for tokens; None: as alone."""
        return self._batch_tokens

    @property
    def chunk_tokens_alone(self) -> int | None:
        """The budget while nothing decodes; None: unlimited, or not known yet."""
        if self._pause_s is None or not self._seconds_per_token:
            return None
        least = 0 if self._experts is None else self._experts.tokens_for(_LEAST_EXPERT_ROWS)
        return self._fitting(_PAUSES_ALONE, max(_LEAST_ALONE, least))

    def _fitting(self, pauses: float, least: int) -> int:
        if self._pause_s is None or not self._seconds_per_token:
            return self._most_tokens
        fitting = pauses * self._pause_s / self._seconds_per_token
        if self._experts is not None:
            fitting = min(fitting, self._experts.rows_within(fitting / self._read_tokens))
        return max(int(fitting), least)
