"""What an engine returns: token deltas, scores, answers, and how far a prompt is."""

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
    """The worker was killed, or is out of reach."""
    MOVED = "moved"
    """The worker has ended in order, or is about to."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Log-probabilities of n tokens, at temperature 1, before penalties, bias and constraint."""

    logprobs: NDArray[np.float32]
    """[n]: of the tokens themselves."""
    top_token_ids: NDArray[np.int32]
    """[n, k]: the likeliest tokens at each place, the likeliest first."""
    top_logprobs: NDArray[np.float32]
    """[n, k]: of those."""

    @staticmethod
    def joined(parts: Sequence["TokenScores"]) -> "TokenScores | None":
        """The scores of all parts in order; None if there are no parts."""
        if len(parts) < 2:
            return parts[0] if parts else None
        return TokenScores(
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.top_token_ids for part in parts]),
            np.concatenate([part.top_logprobs for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PromptResult:
    """What the request wanted of its prompt; only in the first delta."""

    scores: TokenScores | None = None
    """Of prompt tokens 1, 2, ..., if `prompt_logprobs` was set."""
    embedding: NDArray[np.float32] | None = None
    """[hidden_size], of length 1, if `pooling` was set."""


class PromptProgress(NamedTuple):
    """How far a request is before its first token; only of requests that ask for it."""

    total_tokens: int
    """Of the prompt."""
    cached_tokens: int
    """Of them, those found in the prefix cache or loaded so far."""
    read_tokens: int
    """Of them, those whose keys and values are there: the cached ones and those computed. It never falls."""
    elapsed_s: float
    """Since the request was first given a place in the engine's steps; 0 before that."""
    queued_ahead: int | None
    """While it waits: how many sequences of this worker begin before it; None: it does not wait."""


class TokenDelta(NamedTuple):
    """Tokens generated since the last delta. A slow reader gets fewer and bigger deltas.

    A named tuple, which is made faster than a frozen dataclass: the engine makes one per token.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    """Of the output; in the last delta only."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache; in the first delta only."""
    scores: TokenScores | None = None
    """One per token, if the request asked for them."""
    prompt: PromptResult | None = None
    """In the first delta only, if the request asked for it."""
    more: "tuple[Answer, ...]" = ()
    """In the only delta of a beam search, which is the best answer: the other answers, the best first."""
    progress: PromptProgress | None = None
    """News of the prompt: in deltas before the first token, which have nothing else, and in the first token's."""
    losses: tuple[Loss, ...] = ()
    """How the output has lost its workers since the last delta; the ingress adds it, no worker does."""
    arithmetic: str = ""
    """The worker's (`WorkerFacts.arithmetic`); in the first delta that it sends."""

    @property
    def has_output(self) -> bool:
        """Whether it brings more than news of the prompt."""
        return bool(self.token_ids) or self.finish_reason is not None


class Answer(NamedTuple):
    """A complete output, without its end token."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason


Generate = Callable[[GenerateRequest], AsyncGenerator[TokenDelta, None]]
"""Streams a request's deltas; the last has a finish reason. Closing it aborts the request. Raises EngineError."""
