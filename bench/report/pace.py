"""About how fast this machine runs a model: for saying how long a measurement takes, never for a result."""

from dataclasses import dataclass

_SHARE = 0.5  # of the machine's limits that a measurement is expected to reach
_STEP_S = 0.002  # what a step costs beside reading weights
_CONVERTED_PER_S = 40e6  # weights
SERVICE_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    token_s: float
    """Time per token of a single answer."""
    prompt_tokens_per_s: float
    weights: int

    @classmethod
    def expected(cls, weights: int, read_bytes_per_s: float, macs_per_s: float) -> "Pace":
        """The pace of a model with int4 weights, from the machine's rates."""
        token_s = weights * 0.56 / (read_bytes_per_s * _SHARE) + _STEP_S
        return cls(token_s, max(1.0, macs_per_s * _SHARE / weights), weights)

    @classmethod
    def guessed(cls, weights: int) -> "Pace":
        """The pace of a small machine, for when rates can't be measured."""
        return cls.expected(weights, 20e9, 2e11)

    def answer_s(self, prompt_tokens: int, new_tokens: int) -> float:
        """Time of a single request."""
        return prompt_tokens / self.prompt_tokens_per_s + new_tokens * self.token_s

    def answers_s(self, streams: int, prompt_tokens: int, new_tokens: int) -> float:
        """Time of `streams` requests at once; a step with several answers reads the weights once."""
        step_s = max(self.token_s, streams / self.prompt_tokens_per_s)
        return streams * prompt_tokens / self.prompt_tokens_per_s + new_tokens * step_s

    def conversion_s(self) -> float:
        """Rounding to nearest, and loading."""
        return self.weights / _CONVERTED_PER_S + 1.0

    def scored_s(self, tokens: int) -> float:
        """A text's perplexity; scoring computes logits of every token."""
        return tokens / self.prompt_tokens_per_s * 3
