"""What the engine needs of a model: the batch of a step, and the protocols of what computes it.

`native_runner.py` implements them with the native engine, tests with a model without weights. Knows nothing of how the
engine makes its batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.messages.outputs import PromptResult
from app.messages.requests import GenerateRequest, SamplingParams


class TokenConstraint(Protocol):
    """Which tokens an output may have, as masks over the vocabulary. Used by one thread at a time."""

    error: str | None
    """Why it can make no further mask; None while it can."""

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Writes [ceil(vocab_size / 32)]: bit t % 32 of word t // 32 is 1 where token t may come next."""

    def accept(self, token: int) -> None:
        """The token was sampled."""


class TokenSampler(Protocol):
    """One request's sampling state."""

    def remember(self, tokens: Sequence[int]) -> None:
        """Goes on as if it had sampled these tokens. Raises ValueError for one outside the vocabulary."""

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """The arrays of TokenScores for the tokens sampled since the last call: [n], [n, k], [n, k]."""


class CandidateSampler(TokenSampler, Protocol):
    """A search's sampler. It samples nothing and keeps no history.

    `take_scores` gives the last row's likeliest tokens, after penalties and bias: n is 1.
    """

    def after(self, token: int) -> "CandidateSampler":
        """A sampler for the text with one token more."""


class PromptReader(Protocol):
    """Gathers a request's PromptResult while its prompt goes through the model."""

    def result(self) -> PromptResult:
        """The result; call it when the whole prompt has been computed."""


class StateReader(Protocol):
    """Reads a sequence's final hidden states for a StateHistory."""

    @property
    def similarity(self) -> float:
        """Of a candidate: the largest cosine similarity of its state and a state of the history."""

    def choose(self) -> None:
        """Appends the candidate's state to the history."""


class StateHistory(Protocol):
    """The final hidden states of one text so far."""

    def writer(self) -> StateReader:
        """For the text's own sequence: appends every state that the history lacks."""

    def candidate(self) -> StateReader:
        """For a sequence that continues the text by one token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work. n sequences, one after another, have t tokens in all.

    The full contract is that of `_native.Model.step`.
    """

    token_ids: NDArray[np.int32]
    """[t]"""
    positions: NDArray[np.int32]
    """[t]: each token's position in its text."""
    slots: NDArray[np.int32]
    """[n]: each sequence's row of the page table."""
    query_lengths: NDArray[np.int32]
    """[n]: how many of the tokens are each sequence's; at least 1."""
    context_lengths: NDArray[np.int32]
    """[n]: how many tokens before those are in the sequence's pages."""
    samplers: Sequence[TokenSampler | None]
    """[n]; None: no token is sampled."""
    readers: Sequence[PromptReader | StateReader | None] = ()
    """[n], or empty if no sequence has one."""
    draft_lengths: NDArray[np.int32] | None = None
    """[n]: how many of a sequence's last tokens are guesses; None: there are none."""
    prompts: int = 0
    """How many of the sequences, the last ones, compute tokens of their prompt and not of their output."""


class ModelRunner(Protocol):
    """A model with its KV cache. Used by one thread at a time."""

    vocab_size: int
    page_tokens: int
    """Tokens of a KV page."""
    kv_pages: int
    state_pages: int
    """Pages of recurrent states, numbered from 0 on their own; 0: the model has none."""
    max_sequences: int
    """Sequences of one step, and rows of the page table."""
    max_step_tokens: int
    max_context_tokens: int
    tier: str
    """The instructions that its kernels use, for who looks after the service."""
    arithmetic: str
    """What the last bits of its results depend on, beside the weights."""

    @property
    def group_windows(self) -> Sequence[int]:
        """[groups]: how many tokens the layers of a KV page group see, the newest included; 0: all."""

    @property
    def page_tables(self) -> NDArray[np.int32]:
        """[groups, max_sequences, ceil(max_context_tokens / page_tokens)], written by the engine.

        Entries that no token of a step sees are not read. With states there is one group more, the last: their pages.
        There entries are -1 for pages that a step computes from their first token to their last and that nobody needs.
        """

    @property
    def has_relative_positions(self) -> bool:
        """Whether keys can be moved to other positions."""

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> TokenSampler:
        """A new sampler for one request. Raises ValueError naming the option that is out of range."""

    def constrained(self, sampler: TokenSampler, constraint: TokenConstraint) -> TokenSampler:
        """The sampler, limited to the tokens that `constraint` allows."""

    def make_candidate_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, candidates: int, *, penalizes_logprobs: bool
    ) -> CandidateSampler:
        """A search's sampler, whose rows have the `candidates` likeliest tokens. Raises ValueError."""

    def make_history(self) -> StateHistory:
        """An empty history, for one request's text."""

    def make_reader(self, request: GenerateRequest) -> PromptReader | None:
        """A new reader if the request wants a PromptResult, else None. Raises ValueError."""

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page."""

    def copy_state_page(self, source: int, target: int) -> None:
        """Copies a page of states."""

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        """Copies a page, and rotates its keys as if their tokens stood `positions` later."""

    @property
    def gathered_page_bytes(self) -> int:
        """Bytes of a gathered page."""

    def gather_page(self, page: int, out: NDArray[np.uint8]) -> None:
        """Writes a page to `out` [gathered_page_bytes]. Any thread, during a step too, if no step writes the page."""

    def scatter_page(self, page: int, gathered: NDArray[np.uint8]) -> None:
        """Replaces a page by a gathered one. Any thread, during a step too, if no step uses the page.

        Raises ValueError for another model's, and then has written nothing.
        """

    def clear_page(self, page: int) -> None:
        """Overwrites a page that no step uses."""

    def step(self, batch: Batch) -> NDArray[np.int32]:
        """Runs the batch; returns [n + number of guesses]: one token per sequence, and one per guess.

        A sequence's guesses come right after it. -1 where a guess was wrong or there is no sampler.
        """
