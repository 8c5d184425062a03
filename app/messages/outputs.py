"""What an engine gives back: token deltas, scores, answers."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.messages.requests import GenerateRequest

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Log-probabilities as the model gives them: at temperature 1, before penalties, bias and constraint."""

    logprobs: NDArray[np.float32]
    """[n]"""
    top_token_ids: NDArray[np.int32]
    """[n, k], the likeliest first"""
    top_logprobs: NDArray[np.float32]
    """[n, k]"""

    @staticmethod
    def joined(parts: Sequence["TokenScores"]) -> "TokenScores | None":
        """One after the other; None of none."""
        if len(parts) < 2:
            return parts[0] if parts else None
        return TokenScores(
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.top_token_ids for part in parts]),
            np.concatenate([part.top_logprobs for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PromptResult:
    """What came of the prompt; only with a request's first delta."""

    scores: TokenScores | None = None
    """Of prompt tokens 1, 2, ..., if `prompt_logprobs`."""
    embedding: NDArray[np.float32] | None = None
    """[hidden_size], of length 1, if `pooling`."""


class TokenDelta(NamedTuple):
    """Tokens made since the last delta. A slow reader gets fewer, bigger ones; the last has a reason.

    A named tuple, for the engine makes one per token: half the time of a frozen dataclass.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache; in the first delta only."""
    scores: TokenScores | None = None
    """One per token, if the request asked for them."""
    prompt: PromptResult | None = None
    more: "tuple[Answer, ...]" = ()
    """With the last delta of a beam search, which is also its first: the answers after the best, which it is itself."""


class Answer(NamedTuple):
    """A finished output, without its end token."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason


Generate = Callable[[GenerateRequest], AsyncGenerator[TokenDelta, None]]
"""Streams a request's deltas, the last with a finish reason; closing it aborts it. Raises EngineError."""
