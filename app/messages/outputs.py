"""The engine's results: token deltas, scores, answers, and prompt progress."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.messages.requests import GenerateRequest

FinishReason = Literal["stop", "length"]


class Loss(StrEnum):
    """How a request has lost its worker."""

    CRASHED = "crashed"
    """The worker has crashed, or could not compute the step with this request."""
    LOST = "lost"
    """The worker was killed, or is unreachable."""
    MOVED = "moved"
    """The worker has shut down in order, or is about to."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Log-probabilities of n tokens, at temperature 1, before penalties, bias and constraint."""

    logprobs: NDArray[np.float32]
    """[n]: log-probabilities of the tokens themselves."""
    top_token_ids: NDArray[np.int32]
    """[n, k]: the likeliest tokens at each position, likeliest first."""
    top_logprobs: NDArray[np.float32]
    """[n, k]: their log-probabilities."""

    @staticmethod
    def joined(parts: Sequence["TokenScores"]) -> "TokenScores | None":
        """Concatenates the scores; None if there are no parts."""
        if len(parts) < 2:
            return parts[0] if parts else None
        return TokenScores(
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.top_token_ids for part in parts]),
            np.concatenate([part.top_logprobs for part in parts]),
        )

    def with_written(self, token_ids: Sequence[int]) -> "TokenScores":
        """Returns the scores with those of further tokens that nothing was sampled for, and which so were certain."""
        count, top = len(token_ids), self.top_token_ids.shape[1]
        tokens = np.repeat(np.array(token_ids, np.int32)[:, np.newaxis], top, axis=1)
        certain = TokenScores(np.zeros(count, np.float32), tokens, np.zeros((count, top), np.float32))
        return TokenScores.joined([self, certain]) or self


@dataclass(frozen=True, slots=True, eq=False)
class PromptResult:
    """The requested results for the prompt; only in the first delta."""

    scores: TokenScores | None = None
    """Scores of prompt tokens 1, 2, ..., if `prompt_logprobs` was set."""
    embedding: NDArray[np.float32] | None = None
    """[hidden_size], normalized to length 1, if `pooling` was set; [texts, size] of an encoder's texts."""


class PromptProgress(NamedTuple):
    """A request's progress before its first token; only for requests that ask for it."""

    total_tokens: int
    """Length of the prompt."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache or loaded so far."""
    read_tokens: int
    """Prompt tokens that are cached or computed so far. It never falls."""
    elapsed_s: float
    """Seconds since the request was first scheduled; 0 before that."""
    queued_ahead: int | None
    """While it waits, how many sequences of this worker begin before it; None: it does not wait."""


class TokenDelta(NamedTuple):
    """Tokens generated since the last delta. A slow reader gets fewer and bigger deltas.

    A named tuple, which is made faster than a frozen dataclass: the engine makes one per token.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    """The output's finish reason; in the last delta only."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; in the first delta only."""
    scores: TokenScores | None = None
    """One score per token, if the request asked for them."""
    prompt: PromptResult | None = None
    """In the first delta only, if the request asked for it."""
    more: "tuple[Answer, ...]" = ()
    """The other answers of a beam search, best first; its only delta has the best answer."""
    progress: PromptProgress | None = None
    """Prompt progress: in deltas before the first token, which have nothing else, and in the first token's."""
    losses: tuple[Loss, ...] = ()
    """How the output has lost workers since the last delta; added by the ingress, not by a worker."""
    arithmetic: str = ""
    """`WorkerFacts.arithmetic`, in the first delta that a worker sends."""
    end_token_id: int | None = None
    """The stop token that has ended a search's best answer. Only the engine's own events have it."""

    @property
    def has_output(self) -> bool:
        """Whether it has more than prompt progress."""
        return bool(self.token_ids) or self.finish_reason is not None


class Answer(NamedTuple):
    """A complete output, without its end token."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    end_token_id: int | None = None
    """The end token; None: it has ended in another way."""


Generate = Callable[[GenerateRequest], AsyncGenerator[TokenDelta, None]]
"""Streams a request's deltas; the last has a finish reason. Closing it aborts the request. Raises EngineError."""
