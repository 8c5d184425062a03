"""The ModelRunner of the native engine: a packed model behind the interface that the engine's loop knows.

Only translates names and types; it knows nothing of requests, scheduling or pages' owners.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.types import Batch, SamplingParams, TokenSampler
from kernels import _native


def kv_pages_within(folder: str, kv_type: str, memory_bytes: int) -> int:
    """Pages of a packed model's KV cache that fit `memory_bytes`.

    Raises ValueError where not even one does, `_native.PackedFileError`, OSError.
    """
    page_bytes = _native.Model.kv_page_bytes(folder, kv_type)
    pages = memory_bytes // page_bytes
    if pages < 1:
        raise ValueError(f"memory_bytes: {memory_bytes} is less than one KV page of this model, {page_bytes}")
    return pages


class NativeRunner:
    """Owns one `_native.Model`. Not thread-safe: one step at a time, from whichever thread."""

    def __init__(
        self,
        folder: str,
        *,
        threads: int,
        cpus: Sequence[int] = (),
        compute_type: str = "int8",
        kv_type: str = "bf16",
        weight_memory: str = "auto",
        nodes: Sequence[int] = (),
        bind_weights: bool = True,
        kv_pages: int,
        max_sequences: int,
        max_step_tokens: int,
        max_context_tokens: int,
    ) -> None:
        """Loads the packed model in `folder`.

        Arguments, limits and errors are those of `_native.Model`; no cpus: the threads are not pinned.
        """
        self.model = _native.Model(
            folder,
            threads=threads,
            cpus=list(cpus),
            compute_type=compute_type,
            kv_type=kv_type,
            weight_memory=weight_memory,
            nodes=list(nodes),
            bind_weights=bind_weights,
            kv_pages=kv_pages,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            max_context_tokens=max_context_tokens,
        )
        """The native model: its tier, its threads, its memory and its profile."""
        self.vocab_size = self.model.vocab_size
        self.page_tokens = _native.PAGE_TOKENS
        self.kv_pages = kv_pages
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.max_context_tokens = max_context_tokens
        self._page_table = self.model.page_table

    @property
    def page_table(self) -> NDArray[np.int32]:
        """[max_sequences, ceil(max_context_tokens / page_tokens)], written by the engine."""
        return self._page_table

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> TokenSampler:
        """A fresh sampler for one request. Raises ValueError naming the option that is out of range."""
        return _native.Sampler(
            vocab_size=self.vocab_size,
            prompt=prompt_token_ids,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias,
            seed=seed,
        )

    def step(self, batch: Batch) -> NDArray[np.int32]:
        """Runs the batch; one sampled token per sequence, -1 where it has no sampler.

        Raises ValueError naming the array that does not fit.
        """
        samplers = [self._native_sampler(sampler) for sampler in batch.samplers]
        return self.model.step(
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.query_lengths,
            batch.context_lengths,
            samplers,
        )

    @staticmethod
    def _native_sampler(sampler: TokenSampler | None) -> _native.Sampler | None:
        if sampler is None or isinstance(sampler, _native.Sampler):
            return sampler
        raise TypeError(f"samplers: {type(sampler).__name__} was not made by this runner")
