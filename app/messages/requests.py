"""The request that the interface sends to an engine. Frozen and picklable: integers, floats, and schemas as text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.messages.memory import MemoryGrant
from app.messages.thoughts import ThoughtBudget

OnOverflow = Literal["refuse", "shift"]


class Priority(StrEnum):
    """Whose turn comes first."""

    NORMAL = "normal"
    """Somebody waits for the answer."""
    BATCH = "batch"
    """Nobody waits: it is computed when no normal request wants to be."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options; their ranges are those of `_native.Sampler`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    """None: the engine draws a random seed."""
    logprobs: int | None = None
    """Returns scores of every output token and this many of the likeliest tokens at its position; None: no scores."""
    min_new_tokens: int = 0
    """None of `end_token_ids` can be sampled until the output has this many tokens."""
    end_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """How an output continues when the context is full: some of the oldest tokens are dropped, the rest moves up."""

    tokens: int
    """The most tokens that the model sees; rounded down to whole pages."""
    keep_tokens: int
    """How many of the first tokens are never dropped; rounded up to whole pages."""
    discard_tokens: int
    """How many tokens are dropped at a time; rounded up to whole pages, at least one page."""
    is_required: bool = True
    """False: the window shrinks to what the KV cache holds, and where the model's context can't be shifted, the output
    ends when the context is full. True: such a request is refused."""


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Beam search, diverse beam search if `groups` is above 1 (`app.engine.searches.methods`). Nothing is sampled."""

    beams: int
    """Number of beams, in all groups together."""
    answers: int = 1
    """How many of the best outputs to return, at most `beams`."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    groups: int = 1
    """A divisor of `beams`."""
    diversity_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class ContrastiveParams:
    """Contrastive search (`app.engine.searches.methods`). Nothing is sampled."""

    candidates: int
    """How many of the likeliest tokens are compared in each step."""
    alpha: float
    """0 to 1: the weight of the penalty for similarity to earlier text."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts for an encoder, one after another."""

    token_ids: NDArray[np.int32]
    """[tokens] of all texts, with their special tokens."""
    lengths: NDArray[np.int32]
    """[texts]: tokens of each, at least one."""
    second: NDArray[np.int32]
    """[texts]: after how many tokens a pair's second text begins; a text's length where there is none."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request to continue one sequence."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    """At least one token, unless there are texts."""
    max_new_tokens: int
    """0: only the prompt is computed. Prompt and output together fit the model's context, unless there is a window."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the output with finish reason "stop"; the stop token itself is not in the output."""
    tenant: bytes = field(kw_only=True)
    """The owner of the request: only requests with the same value share cached pages. It comes from the caller's key,
    never from a request's text or fields, and has no default: b"" says that everybody may share the pages. With
    accounts it is the user, so that all of a user's keys and sessions share them."""
    client: bytes = field(default=b"", kw_only=True)
    """Tells the callers of one tenant apart for fair scheduling: a digest of the client's address where nobody has a
    key. It affects only the order."""
    priority: Priority = field(default=Priority.NORMAL, kw_only=True)
    memory: MemoryGrant | None = field(default=None, repr=False)
    """The user's saved pages; None: pages are neither read from disk nor saved. Where the engine has a page store, only
    requests with the same `names_key` share pages, in memory too."""
    window: ContextWindow | None = None
    """None: a request that exceeds the context is refused."""
    prompt_logprobs: int | None = None
    """Returns scores of every prompt token but the first, and this many of the likeliest tokens; None: no scores."""
    pooling: Literal["mean", "last"] | None = None
    """Returns one vector of the prompt's final hidden states; not together with prompt_logprobs."""
    texts: Texts | None = None
    """For an encoder, instead of the prompt: its only delta has a vector or a score of each text."""
    grammar: str | None = None
    """Constraint on the output: a JSON schema, or several as `app.messages.grammar` writes them. The worker makes a
    TokenConstraint of it; the engine does not read it."""
    thought: ThoughtBudget | None = None
    """How long the output may think; None: as long as it likes. Not for a search."""
    search: BeamParams | ContrastiveParams | None = None
    """None: each token is sampled. A search has neither window nor scores nor grammar, and does not use temperature,
    top_k, top_p, min_p and seed."""

    model_identity: str = ""
    """`ModelCard.identity` of the model that it was planned for: other workers must not run it. Empty: any may."""
    resumed_token_ids: tuple[int, ...] = ()
    """The output so far, made by another engine: this one continues it, with deltas of later tokens only. Seed and
    sampling are those of the whole output. Not for a search, whose output begins again."""
    resumed_arithmetic: str = ""
    """`WorkerFacts.arithmetic` of the engine that made them; empty: unknown. An engine with the same one is preferred,
    because it continues with the same tokens."""
    reports_progress: bool = False
    """Whether deltas with a `PromptProgress` come before the first token."""
    may_draft: bool = True
    """False: nothing is drafted for it, which changes its speed and nothing else."""
    uses_cache: bool = True
    """False: no pages are shared with other requests, in memory or on disk."""

    @property
    def needs_scores(self) -> bool:
        """Whether it asks for log-probabilities or an embedding."""
        return self.sampling.logprobs is not None or self.prompt_logprobs is not None or self.pooling is not None

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token must be computed, even if its keys and values are cached."""
        compares_states = isinstance(self.search, ContrastiveParams)
        return self.prompt_logprobs is not None or self.pooling is not None or compares_states
