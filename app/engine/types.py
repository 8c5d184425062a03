"""What crosses the engine's boundary: requests in, token deltas out, and the batch that the model runs.

Frozen and picklable, made of integers and floats: the same objects travel from the ingress through Ray to
the worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token; the ranges are those of `kernels/sampling.h`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    """None: the engine draws one from the operating system."""
    logprobs: int | None = None
    """Score every output token, and so many of the likeliest in its place; None: no scores."""
    min_new_tokens: int = 0
    """Until so many are made, none of `end_token_ids` can be drawn."""
    end_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """How an output goes on where the context ends: some of the oldest tokens leave, and the rest moves up."""

    tokens: int
    """Tokens that are seen at most; rounded down to whole pages."""
    keep_tokens: int
    """The first tokens, which never leave; rounded up to whole pages."""
    discard_tokens: int
    """Tokens that leave at a time; rounded up to whole pages, at least one."""


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Beam search, in groups where `groups` is above 1 (search.py); nothing is drawn."""

    beams: int
    """Of all groups."""
    answers: int = 1
    """The best so many are the answer, at most `beams`."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    groups: int = 1
    """A divisor of `beams`."""
    diversity_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class ContrastiveParams:
    """Contrastive search (search.py); nothing is drawn."""

    candidates: int
    alpha: float
    """0 to 1: how much a candidate's likeness to the text before it counts against it."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to continue."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    """At least one token."""
    max_new_tokens: int
    """0: the prompt only is computed. Prompt and output together fit the model's context, unless there is a window."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the output with finish reason "stop"; the stop token itself is not in the output."""
    tenant: bytes = b""
    """Whose request it is: only requests with the same value share cached pages. Set by who authenticates the caller,
    never taken from a request's text or fields."""
    window: ContextWindow | None = None
    """None: what does not fit the context is refused."""
    prompt_logprobs: int | None = None
    """Score every prompt token but the first, and so many of the likeliest in its place; None: no scores."""
    pooling: Literal["mean", "last"] | None = None
    """Make one vector of the prompt's final hidden states; not together with prompt_logprobs."""
    grammar: str | None = None
    """What the output must be, for whoever makes the TokenConstraint that the engine gets; the engine reads none."""
    search: BeamParams | ContrastiveParams | None = None
    """None: each token is drawn. Else without window, scores and grammar; temperature, top_k, top_p, min_p and seed
    have no part in it."""

    @property
    def needs_scores(self) -> bool:
        """Whether it asks for log-probabilities or for a vector."""
        return self.sampling.logprobs is not None or self.prompt_logprobs is not None or self.pooling is not None

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token must go through the model, even where its keys and values are known."""
        compares_states = isinstance(self.search, ContrastiveParams)
        return self.prompt_logprobs is not None or self.pooling is not None or compares_states


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


class EngineError(Exception):
    """Base of what the engine refuses; the message is fit for the user."""


class InvalidRequestError(EngineError):
    """A request that says something impossible: an option out of range, a token outside the vocabulary."""


class RequestTooLongError(EngineError):
    """The prompt, or prompt and output together, can never fit the model's context or the KV pages."""


class QueueFullError(EngineError):
    """No place to wait: try again later."""


class EngineStoppedError(EngineError):
    """The engine is shutting down, or its thread has failed."""


class ConstraintError(InvalidRequestError):
    """A grammar that can't be compiled, or that became too complex as the output went on.

    `reason` may quote the grammar, which is a user's: it is not in the exception's own text, which Ray Serve logs.
    `definition`: which of the grammar's own definitions it is about, if one by itself is the cause.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.definition: str | None = None

    @property
    def told(self) -> str:
        """What the client is to read."""
        return f"{self}: {self.reason}" if self.reason else str(self)


class StepFailedError(EngineError):
    """The step that held this request failed; the engine may go on with others."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine was doing when its last step ended."""

    running: int
    """Sequences with KV pages: requests, and each of a search's branches."""
    waiting: int
    """Requests not admitted yet, and preempted ones."""
    pages_used: int
    pages_free: int
    steps: int
    pages_cached: int
    """Pages that a later request may find in the prefix cache; those of them that nobody uses count as free too."""
    computed_tokens: int
    """Tokens that went through the model since the start: prompts, outputs, and what preemptions repeat."""
    cached_tokens: int
    """Prompt tokens since the start that did not, because the prefix cache had them."""
    generated_tokens: int
    """Output tokens since the start."""
    preemptions: int
    guessed_tokens: int
    """Tokens that were computed as guesses of outputs since the start."""
    right_guesses: int
    """Those of them that were right."""
    generated_tokens_per_s: float
    """Over the last full second of work; 0 when idle."""
    healthy: bool
    """Whether it takes requests: False once its thread has ended or steps fail one after another."""


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
