"""What the engine needs of a model: a step's batch, and the protocols of the classes that compute it.

`native_runner.py` implements the protocols with the native engine; tests have a model without weights. Knows nothing of
how the engine makes its batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.messages.outputs import PromptResult
from app.messages.requests import GenerateRequest, SamplingParams


class TokenConstraint(Protocol):
    """The tokens that an output may have, as masks over the vocabulary. Used by one thread at a time."""

    error: str | None
    """Why it can't make further masks; None while it can."""

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Writes [ceil(vocab_size / 32)] words: bit t % 32 of word t // 32 is 1 where token t may come next."""

    def accept(self, token: int) -> None:
        """Advances past a sampled token."""

    def follows(self, tokens: Sequence[int]) -> int:
        """How many of the tokens may come next, one after another."""

    def forced(self) -> Sequence[int]:
        """The tokens of the text that must come next, as a tokenizer splits it; none where several can."""

    def copy(self) -> "TokenConstraint":
        """One that goes on from here, for drafts: what becomes of it does not concern this one."""


class TokenSampler(Protocol):
    """One request's sampling state."""

    def remember(self, tokens: Sequence[int]) -> None:
        """Continues as if it had sampled these tokens. Raises ValueError for one outside the vocabulary."""

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """Returns the arrays of TokenScores for the tokens sampled since the last call: [n], [n, k], [n, k]."""


class DraftSampler(TokenSampler, Protocol):
    """Draws drafts as the request's own sampler would."""

    def after(self, token: int) -> "DraftSampler":
        """Makes a sampler that goes on as if this one had just drawn the token; this one stays as it is."""


class CandidateSampler(TokenSampler, Protocol):
    """A search's sampler, which samples nothing and keeps no history.

    `take_scores` gives the last row's likeliest tokens, after penalties and bias: n is 1.
    """

    def after(self, token: int) -> "CandidateSampler":
        """Makes a sampler for the text with one more token."""


class PromptReader(Protocol):
    """Collects a request's PromptResult while its prompt is computed."""

    def result(self) -> PromptResult:
        """Returns the result. Call it when the whole prompt has been computed."""


class StateReader(Protocol):
    """Reads a sequence's final hidden states for a StateHistory."""

    @property
    def similarity(self) -> float:
        """For a candidate: the largest cosine similarity of its state to a state of the history."""

    def choose(self) -> None:
        """Appends the candidate's state to the history."""


class StateHistory(Protocol):
    """The final hidden states of one text so far."""

    def writer(self) -> StateReader:
        """Makes a reader for the text's own sequence, which appends every state that the history lacks."""

    def candidate(self) -> StateReader:
        """Makes a reader for a sequence that continues the text by one token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input: n sequences, one after another, with t tokens in all.

    The full contract is that of `_native.Model.step`.
    """

    token_ids: NDArray[np.int32]
    """[t]"""
    positions: NDArray[np.int32]
    """[t]: each token's position in its text."""
    slots: NDArray[np.int32]
    """[n]: each sequence's row in the page table."""
    query_lengths: NDArray[np.int32]
    """[n]: how many of the tokens belong to each sequence; at least 1."""
    context_lengths: NDArray[np.int32]
    """[n]: how many earlier tokens each sequence has in its pages."""
    samplers: Sequence[TokenSampler | None]
    """[n]; None: no token is sampled."""
    readers: Sequence[PromptReader | StateReader | None] = ()
    """[n], or empty if no sequence has one."""
    draft_lengths: NDArray[np.int32] | None = None
    """[n]: how many of each sequence's last tokens are draft tokens; None: there are none."""
    prompts: int = 0
    """How many sequences, the last ones, compute tokens of their prompt and not of their output."""
    interrupt: NDArray[np.int32] | None = None
    """[1]: ends the step early once another thread has made it other than 0; None: nothing does."""


class ModelRunner(Protocol):
    """A model with its KV cache. Used by one thread at a time."""

    vocab_size: int
    page_tokens: int
    """Tokens of a KV page."""
    kv_pages: int
    state_pages: int
    """Number of pages of recurrent states, numbered from 0 on their own; 0: the model has none."""
    max_sequences: int
    """The most sequences of one step; also the rows of the page table."""
    max_step_tokens: int
    max_context_tokens: int
    tier: str
    """The instruction set of its kernels, shown to operators."""
    arithmetic: str
    """Identifies everything but the weights that the last bits of its results depend on."""

    @property
    def group_windows(self) -> Sequence[int]:
        """[groups]: how many tokens the layers of a KV page group see, the newest included; 0: all."""

    @property
    def page_tables(self) -> NDArray[np.int32]:
        """Shape [groups, max_sequences, ceil(max_context_tokens / page_tokens)], written by the engine.

        Entries that no token of a step sees are not read. A model with recurrent states has one more group, the last,
        for the state pages. Its entries are -1 for pages that one step computes completely and that nobody needs
        afterwards.
        """

    @property
    def has_relative_positions(self) -> bool:
        """Whether cached keys can be rotated to other positions."""

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> TokenSampler:
        """Makes a sampler for one request. Raises ValueError naming the option that is out of range."""

    def make_draft_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> DraftSampler:
        """Makes a sampler that draws with the request's options and random numbers. Raises ValueError."""

    def constrained(self, sampler: TokenSampler, constraint: TokenConstraint) -> TokenSampler:
        """Wraps the sampler so that it samples only tokens that `constraint` allows."""

    def make_candidate_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, candidates: int, *, penalizes_logprobs: bool
    ) -> CandidateSampler:
        """Makes a search's sampler, which gives the `candidates` likeliest tokens per row. Raises ValueError."""

    def make_history(self) -> StateHistory:
        """Makes an empty history for one request's text."""

    def make_reader(self, request: GenerateRequest) -> PromptReader | None:
        """Makes a reader if the request wants a PromptResult, else None. Raises ValueError."""

    def copy_page(self, source: int, target: int) -> None: ...

    def copy_state_page(self, source: int, target: int) -> None: ...

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        """Copies a KV page and rotates its keys to positions `positions` later."""

    @property
    def gathered_page_bytes(self) -> int: ...

    def gather_page(self, page: int, out: NDArray[np.uint8]) -> None:
        """Copies a page to `out` [gathered_page_bytes]. Thread-safe, also during a step, if no step writes the page."""

    def scatter_page(self, page: int, gathered: NDArray[np.uint8]) -> None:
        """Overwrites a page with a gathered one. Thread-safe, also during a step, if no step uses the page.

        Raises ValueError, without writing, for a page of another model.
        """

    def clear_page(self, page: int) -> None:
        """Overwrites a page that no step uses with zeros."""

    def release_memory(self) -> None:
        """Gives the memory of all pages, activations and mapped weights back until the next step; pages are lost."""

    def step(self, batch: Batch) -> NDArray[np.int32] | None:
        """Runs the batch. Returns [n + draft tokens]: one token per sequence, followed by one per draft token.

        The value is -1 where a draft token was wrong or there is no sampler. None: the step was interrupted, and
        samplers and readers are as before.
        """
