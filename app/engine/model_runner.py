"""What crosses the engine's boundary: requests in, token deltas out, and the batch that the model runs.

Frozen and picklable, made of integers and floats: the same objects travel from the ingress through Ray to
the worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.messages.outputs import PromptResult
from app.messages.requests import GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work as arrays, sequences one after another; the contract is `_native.Model.step`."""

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    query_lengths: NDArray[np.int32]
    context_lengths: NDArray[np.int32]
    samplers: Sequence["TokenSampler | None"]
    readers: Sequence["PromptReader | StateReader | None"] = ()
    """One per sequence, or none at all."""
    draft_lengths: NDArray[np.int32] | None = None
    """How many of a sequence's last tokens are guesses; None: there are none."""
    prompts: int = 0
    """How many of the last sequences compute tokens of their prompt, not of their output."""


class TokenConstraint(Protocol):
    """What an output may be, as masks over the vocabulary. Used by one thread at a time."""

    error: str | None
    """Why it can say nothing more; None: all is well."""

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Writes [ceil(vocab_size / 32)]: bit t % 32 of word t // 32 is 1 where token t may come next."""

    def accept(self, token: int) -> None:
        """The token was chosen."""


class TokenSampler(Protocol):
    """One request's sampling state; the runner's, or a test's fake."""

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """TokenScores of the tokens drawn since the last call."""


class CandidateSampler(TokenSampler, Protocol):
    """A search's: it draws nothing and remembers nothing; its scores are the last row's, after penalties and bias."""

    def after(self, token: int) -> "CandidateSampler":
        """A sampler for what follows `token`."""


class StateReader(Protocol):
    """What reads hidden states for a StateHistory; the runner's."""

    @property
    def similarity(self) -> float:
        """A candidate's: the largest cosine similarity of its state and one of the history."""

    def choose(self) -> None:
        """The candidate's state is the history's next."""


class StateHistory(Protocol):
    """The hidden states of one text so far."""

    def writer(self) -> StateReader:
        """For the text's own sequence: the history gets every state that it does not have."""

    def candidate(self) -> StateReader:
        """For the sequence of the history's text and one token more."""


class PromptReader(Protocol):
    """What gathers a request's PromptResult while its prompt goes through the model; the runner's."""

    def result(self) -> PromptResult:
        """Complete when the prompt is."""


class ModelRunner(Protocol):
    """What the engine needs of a model: `_native.Model`, wrapped by `app.engine.runner`, or a test's fake."""

    vocab_size: int
    page_tokens: int
    kv_pages: int
    max_sequences: int
    max_step_tokens: int
    max_context_tokens: int

    @property
    def page_table(self) -> NDArray[np.int32]:
        """[max_sequences, ceil(max_context_tokens / page_tokens)], written by the engine."""

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> TokenSampler:
        """A fresh sampler for one request."""

    def constrained(self, sampler: TokenSampler, constraint: TokenConstraint) -> TokenSampler:
        """The sampler, drawing only what `constraint` allows."""

    def make_candidate_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, candidates: int, *, penalizes_logprobs: bool
    ) -> CandidateSampler:
        """A search's sampler: rows of its so many likeliest tokens."""

    def make_history(self) -> StateHistory:
        """For the states of one request's text; empty."""

    def make_reader(self, request: GenerateRequest) -> PromptReader | None:
        """A fresh reader for a request whose prompt is to be read; None for any other."""

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page."""

    @property
    def has_relative_positions(self) -> bool:
        """Whether keys can be moved to other positions."""

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        """Copies a page, its keys as if their tokens stood so many positions later."""

    def step(self, batch: Batch) -> NDArray[np.int32]:
        """Runs the batch; one sampled token per sequence, and one for each of its guesses that was right.

        In order, a sequence's guesses after it; -1 where a guess was wrong or there is no sampler.
        """
