"""The ModelRunner of the native engine.

It only translates names and types. Knows nothing of scheduling or of which sequence holds a page.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.model_runner import (
    Batch,
    CandidateSampler,
    DraftSampler,
    PromptReader,
    StateHistory,
    StateReader,
    TokenConstraint,
    TokenSampler,
)
from app.engine.scheduling.limits import least_state_pages
from app.messages.outputs import PromptResult, TokenScores
from app.messages.requests import GenerateRequest, SamplingParams
from kernels import _native


def kv_pages_within(
    folder: "str | _native.ModelFiles",
    kv_type: str,
    memory_bytes: int,
    *,
    grouped_context_tokens: int | None = None,
    predicts: bool | str = False,
) -> int:
    """How many KV pages of a packed model fit `memory_bytes`. `kv_type`: any but "auto".

    grouped_context_tokens: max_context_tokens of a runner with page_groups; None: without page groups. predicts: as a
    runner's.

    Raises ValueError if not even one fits or no layer has keys, `_native.PackedFileError`, OSError.
    """
    page_bytes = _native.Model.kv_page_bytes(folder, kv_type, grouped_context_tokens, predicts)
    if page_bytes == 0:
        raise ValueError(
            "folder: no layer of this model has attention, and so it has no KV cache, which a worker needs"
        )
    pages = memory_bytes // page_bytes
    if pages < 1:
        raise ValueError(f"memory_bytes: {memory_bytes} is less than one KV page of this model, {page_bytes}")
    return pages


class NativeRunner:
    """Owns one `_native.Model`. Not thread-safe: any thread may use it, one at a time."""

    def __init__(
        self,
        folder: "str | _native.ModelFiles",
        *,
        threads: int,
        cpus: Sequence[int] = (),
        compute_type: str = "int8",
        prompt_compute_type: str = "same",
        kv_type: str = "auto",
        weight_memory: str = "auto",
        nodes: Sequence[int] = (),
        bind_weights: bool = True,
        kv_pages: int,
        max_sequences: int,
        max_step_tokens: int,
        max_context_tokens: int,
        page_groups: bool = False,
        state_pages: int | None = None,
        predicts: bool | str = False,
    ) -> None:
        """Loads the packed model in `folder`, or from files that are already open.

        page_groups: layers with a sliding window free pages that they don't see any more. The contexts of such a model
            can't be shifted, nor its pages saved.
        state_pages: pages for a model with recurrent states; None: as many as its sequences need, so that few are
            cached.
        predicts: whether the model's layer of multi-token prediction is used, which it must have, for `draft`; or the
            folder of an EAGLE-3 head.

        Arguments, limits and errors are those of `_native.Model`. Without `cpus` the threads are not pinned.
        """
        if state_pages is None:
            state_pages = least_state_pages(max_sequences)
        self.model = _native.Model(
            folder,
            threads=threads,
            cpus=list(cpus),
            compute_type=compute_type,
            prompt_compute_type=prompt_compute_type,
            kv_type=kv_type,
            weight_memory=weight_memory,
            nodes=list(nodes),
            bind_weights=bind_weights,
            kv_pages=kv_pages,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            max_context_tokens=max_context_tokens,
            page_groups=page_groups,
            state_pages=state_pages,
            predicts=predicts,
        )
        """The native model, for callers that need its threads, memory or profile."""
        self.vocab_size = self.model.vocab_size
        self.page_tokens = _native.PAGE_TOKENS
        self.kv_pages = kv_pages
        self.state_pages = state_pages if self.model.has_states else 0
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.max_context_tokens = max_context_tokens
        self.tier: str = self.model.tier
        parts = self.tier, self.model.attention_tier, compute_type, prompt_compute_type, self.model.kv_type
        self.arithmetic = " ".join((*parts, f"{len(set(nodes))} slices" if nodes else "whole"))
        windows: Sequence[int] = self.model.group_windows
        self.group_windows = windows[:-1] if self.model.has_states else windows
        table = self.model.page_table
        self._page_tables = table if table.ndim == 3 else table[np.newaxis]

    @property
    def page_tables(self) -> NDArray[np.int32]:
        return self._page_tables

    @property
    def has_relative_positions(self) -> bool:
        """Whether cached keys can be moved to other positions; False with dynamic RoPE and learned positions."""
        return self.model.has_relative_positions

    @property
    def predicts(self) -> bool:
        """Whether `draft` can be called."""
        return self.model.predicts

    @property
    def predictor_share(self) -> float:
        """How much of a step's work a draft is, about: one of the layers, and a head."""
        return min(2 / self.model.layers, 1.0)

    def draft(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        context_lengths: Sequence[int],
        samplers: Sequence[TokenSampler | None],
    ) -> tuple[list[int], list[float]]:
        """Drafts one token for each of some sequences, as `_native.Model.draft`; -1 where it can't be drafted."""
        for sampler in samplers:
            if isinstance(sampler, _ConstrainedSampler):
                sampler.fill_masks(())
        drafted, chances = self.model.draft(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            np.array(slots, np.int32),
            np.array(context_lengths, np.int32),
            depth=1,
            samplers=list(map(self._native_sampler, samplers)),
        )
        drawn: list[int] = drafted[:, 0].tolist()
        for sampler, token in zip(samplers, drawn, strict=True):
            if isinstance(sampler, _ConstrainedSampler) and token >= 0:
                sampler.constraint.accept(token)
        return drawn, chances[:, 0].tolist()

    def forget_slot(self, slot: int) -> None:
        """Overwrites what drafts of the slot's sequence need, which leaves it, with zeros."""
        self.model.forget_slot(slot)

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> TokenSampler:
        return self._make_sampler(prompt_token_ids, sampling, seed)

    def _make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> _native.Sampler:
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
            min_tokens=sampling.min_new_tokens,
            end_tokens=sorted(sampling.end_token_ids) if sampling.min_new_tokens else (),
            logprobs=-1 if sampling.logprobs is None else min(sampling.logprobs, self.vocab_size),
        )

    def make_draft_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> DraftSampler:
        return self._make_sampler(prompt_token_ids, sampling, seed)

    def constrained(self, sampler: TokenSampler, constraint: TokenConstraint) -> TokenSampler:
        native = self._native_sampler(sampler)
        assert native is not None
        native.set_masked(True)
        return _ConstrainedSampler(native, constraint)

    def make_candidate_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, candidates: int, *, penalizes_logprobs: bool
    ) -> CandidateSampler:
        return _native.Sampler(
            vocab_size=self.vocab_size,
            prompt=prompt_token_ids,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias,
            min_tokens=sampling.min_new_tokens,
            end_tokens=sorted(sampling.end_token_ids) if sampling.min_new_tokens else (),
            candidates=candidates,
            penalize_logprobs=penalizes_logprobs,
        )

    def make_history(self) -> StateHistory:
        return _History(_native.HiddenHistory(hidden_size=self.model.hidden_size))

    def make_reader(self, request: GenerateRequest) -> PromptReader | None:
        prompt = request.prompt_token_ids
        if request.prompt_logprobs is not None:
            top = min(request.prompt_logprobs, self.vocab_size)
            return _Scorer(_native.PromptScorer(vocab_size=self.vocab_size, prompt=prompt, top=top))
        if request.pooling is not None:
            size = self.model.hidden_size
            return _Embedder(
                _native.PromptEmbedder(hidden_size=size, prompt_tokens=len(prompt), pooling=request.pooling)
            )
        return None

    def copy_page(self, source: int, target: int) -> None:
        self.model.copy_page(source, target)

    def copy_state_page(self, source: int, target: int) -> None:
        self.model.copy_state_page(source, target)

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        self.model.copy_page_turned(source, target, positions)

    @property
    def gathered_page_bytes(self) -> int:
        return self.model.gathered_page_bytes

    def gather_page(self, page: int, out: NDArray[np.uint8]) -> None:
        self.model.gather_page(page, out)

    def scatter_page(self, page: int, gathered: NDArray[np.uint8]) -> None:
        self.model.scatter_page(page, gathered)

    def clear_page(self, page: int) -> None:
        self.model.clear_page(page)

    def release_memory(self) -> None:
        self.model.release_memory()

    def probe(self) -> bytes:
        """Computes fixed tokens and returns their gathered KV page. Call it before the first step: it uses page 0.

        Not for models with page groups, whose pages can't be gathered.
        """
        tokens = (np.arange(self.page_tokens, dtype=np.int32) * 7919 + 17) % self.vocab_size
        self._page_tables[0, 0, 0] = 0
        for begin in range(0, self.page_tokens, self.max_step_tokens):
            positions = np.arange(begin, min(begin + self.max_step_tokens, self.page_tokens), dtype=np.int32)
            arrays = [np.array([number], np.int32) for number in (0, len(positions), begin)]
            self.model.logits(tokens[positions], positions, *arrays)
        page = np.empty(self.gathered_page_bytes, np.uint8)
        self.gather_page(0, page)
        return page.tobytes()

    def step(self, batch: Batch) -> NDArray[np.int32] | None:
        """Runs the batch as `ModelRunner.step`. Raises ValueError naming the array that does not fit.

        The native side begins in `kernels/bindings/model.cc`; `kernels/step/decoder.cc` has the order of the stages.
        """
        samplers = [self._native_sampler(sampler) for sampler in batch.samplers]
        constrained = [
            (index, sampler) for index, sampler in enumerate(batch.samplers) if isinstance(sampler, _ConstrainedSampler)
        ]
        drafts = np.zeros(len(batch.samplers), np.int32) if batch.draft_lengths is None else batch.draft_lengths
        for index, sampler in constrained:
            end = int(batch.query_lengths[: index + 1].sum())
            sampler.fill_masks(batch.token_ids[end - int(drafts[index]) : end].tolist())
        sampled = self._step_native(batch, samplers)
        if sampled is None:
            return None
        for index, sampler in constrained:
            begin = index + int(drafts[:index].sum())
            own = sampled[begin : begin + 1 + int(drafts[index])]
            for place, token in enumerate(own.tolist(), start=1):
                if token >= 0:
                    if place > sampler.good_masks:
                        sampler.meet_error()
                    sampler.constraint.accept(token)
                if sampler.constraint.error is not None:  # no token comes after this one, as without drafts
                    own[place:] = -1
                    break
        return sampled

    def _step_native(self, batch: Batch, samplers: Sequence[_native.Sampler | None]) -> NDArray[np.int32] | None:
        return self.model.step(
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.query_lengths,
            batch.context_lengths,
            samplers,
            [_native_reader(reader) for reader in batch.readers],
            batch.draft_lengths,
            batch.prompts,
            batch.interrupt,
        )

    @staticmethod
    def _native_sampler(sampler: TokenSampler | None) -> _native.Sampler | None:
        if sampler is None or isinstance(sampler, _native.Sampler):
            return sampler
        if isinstance(sampler, _ConstrainedSampler):
            return sampler.native
        raise TypeError(f"samplers: {type(sampler).__name__} was not made by this runner")


class _ConstrainedSampler:
    """A native sampler with the constraint that fills its mask."""

    __slots__ = ("_error", "constraint", "good_masks", "native")

    def __init__(self, native: _native.Sampler, constraint: TokenConstraint) -> None:
        self.native = native
        self.constraint = constraint
        self.good_masks = 0
        """Of the masks of this step, those before the first one at which the constraint failed."""
        self._error: str | None = None

    def meet_error(self) -> None:
        """A token was drawn with the first mask that a copy failed at: the constraint fails there as without drafts."""
        self.constraint.fill_mask(self.native.masks(1)[0])
        self.constraint.error = self.constraint.error or self._error

    def remember(self, tokens: Sequence[int]) -> None:
        self.native.remember(tokens)
        for token in tokens:
            self.constraint.accept(token)

    def fill_masks(self, drafts: Sequence[int]) -> None:
        """Makes the mask of the next token, and of those after each draft token, if it is right."""
        first, *others = self.native.masks(1 + len(drafts))
        self.constraint.fill_mask(first)
        ahead = self.constraint.copy() if drafts else self.constraint
        self.good_masks, self._error = 1, None
        for token, mask in zip(drafts, others, strict=True):
            ahead.accept(token)
            ahead.fill_mask(mask)
            if self._error is None and ahead.error is None:
                self.good_masks += 1
            elif self._error is None:
                self._error = ahead.error

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        return self.native.take_scores()


class _History:
    __slots__ = ("native",)

    def __init__(self, native: _native.HiddenHistory) -> None:
        self.native = native

    def writer(self) -> StateReader:
        return _Writer(_native.HistoryWriter(self.native))

    def candidate(self) -> StateReader:
        return _Candidate(_native.CandidateReader(self.native))


class _Writer:
    """Appends the text's own states to the history, without comparing them."""

    __slots__ = ("native",)

    similarity = -1.0

    def __init__(self, native: _native.HistoryWriter) -> None:
        self.native = native

    def choose(self) -> None:
        raise AssertionError("no candidate")


class _Candidate:
    __slots__ = ("native",)

    def __init__(self, native: _native.CandidateReader) -> None:
        self.native = native

    @property
    def similarity(self) -> float:
        return self.native.similarity

    def choose(self) -> None:
        self.native.choose()


class _Scorer:
    __slots__ = ("native",)

    def __init__(self, native: _native.PromptScorer) -> None:
        self.native = native

    def result(self) -> PromptResult:
        return PromptResult(scores=TokenScores(*self.native.scores()))


class _Embedder:
    __slots__ = ("native",)

    def __init__(self, native: _native.PromptEmbedder) -> None:
        self.native = native

    def result(self) -> PromptResult:
        """Returns the vector scaled to length 1; a zero vector stays zero."""
        vector = self.native.embedding()
        length = float(np.linalg.norm(vector.astype(np.float64)))
        return PromptResult(embedding=(vector / np.float32(length)) if length > 0 else vector)


def _native_reader(reader: PromptReader | StateReader | None) -> _native.PromptReader | None:
    if reader is None:
        return None
    if isinstance(reader, (_Scorer, _Embedder, _Writer, _Candidate)):
        return reader.native
    raise TypeError(f"readers: {type(reader).__name__} was not made by this runner")
