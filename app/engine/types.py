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


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to continue."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    """At least one token."""
    max_new_tokens: int
    """At least one; prompt and output together fit the model's context."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the output with finish reason "stop"; the stop token itself is not in the output."""
    tenant: bytes = b""
    """Whose request it is: only requests with the same value share cached pages. Set by who authenticates the caller,
    never taken from a request's text or fields."""


class TokenDelta(NamedTuple):
    """Tokens made since the last delta. A slow reader gets fewer, bigger ones; the last has a reason.

    A named tuple, for the engine makes one per token: half the time of a frozen dataclass.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache; in the first delta only."""


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


class StepFailedError(EngineError):
    """The step that held this request failed; the engine may go on with others."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine was doing when its last step ended."""

    running: int
    """Requests with KV pages."""
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


class TokenSampler(Protocol):
    """One request's sampling state; `_native.Sampler` or a test's fake."""


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

    def step(self, batch: Batch) -> NDArray[np.int32]:
        """Runs the batch; one sampled token per sequence, -1 where it has no sampler."""
