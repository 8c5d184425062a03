"""How many prompt tokens a step may have: as many as fit a set time, which is longer where no output waits for a token.

A count that suits a small model would pause the streams of a large one for seconds, and whoever comes meanwhile. The
time per token is learned from steps with many tokens, where it hardly depends on their number. Knows neither sequences
nor the model.
"""

from typing import Final

_LEAST_TOKENS: Final = 64
"""Of a step to learn from. In a smaller step most of the time goes to reading the weights."""
_LEAST_CHUNK: Final = 8
"""The smallest budget: fewer rows would waste the step on any machine."""
_LEAST_ALONE: Final = 128
"""The same where nothing decodes. Prefill with steps of 128 tokens takes 1.06 times as long as with 512, with 256 1.01
(embedded model, Zen 4, 4,096 tokens)."""
_PAUSES_ALONE: Final = 2.5
"""How many pauses a step may take where nothing decodes: who comes then waits for two such steps at the most."""
_MOST_TIMES: Final = 4.0
_RATE: Final = 0.3
"""The weight of a new measurement in the running mean."""


class PromptPace:
    """A budget of prompt tokens, for steps in which other requests decode."""

    __slots__ = ("_most_tokens", "_pause_s", "_seconds_per_token")

    def __init__(self, most_tokens: int, pause_s: float | None) -> None:
        """Raises ValueError for a budget below one token.

        most_tokens: the budget until a step was measured, and its upper bound afterwards.
        pause_s: how long a step's prompt tokens may take, in seconds; None: the budget is always most_tokens.
        """
        if most_tokens < 1:
            raise ValueError(f"prompt_chunk_tokens must be at least 1, not {most_tokens}")
        self._most_tokens = most_tokens
        self._pause_s = pause_s
        self._seconds_per_token = 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """A step with so many tokens took so long."""
        taken = seconds / tokens
        if tokens < _LEAST_TOKENS and taken >= self._seconds_per_token:
            return  # a small step takes longer for each token, so it says something only if it takes less
        if not self._seconds_per_token:
            self._seconds_per_token = taken
        taken = min(taken, _MOST_TIMES * self._seconds_per_token)  # the machine, or this process, may have stood still
        self._seconds_per_token += _RATE * (taken - self._seconds_per_token)

    @property
    def seconds_per_token(self) -> float:
        """Of prompts; 0 until a step was measured."""
        return self._seconds_per_token

    @property
    def chunk_tokens(self) -> int:
        """The budget: prompt tokens that can be computed within the pause."""
        return min(self._fitting(1.0, _LEAST_CHUNK), self._most_tokens)

    @property
    def chunk_tokens_alone(self) -> int | None:
        """The budget where nothing decodes; None: there is no limit, or none is known yet."""
        if self._pause_s is None or not self._seconds_per_token:
            return None
        return self._fitting(_PAUSES_ALONE, _LEAST_ALONE)

    def _fitting(self, pauses: float, least: int) -> int:
        if self._pause_s is None or not self._seconds_per_token:
            return self._most_tokens
        return max(int(pauses * self._pause_s / self._seconds_per_token), least)
