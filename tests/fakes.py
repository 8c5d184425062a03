"""A model without weights that detects every mistake of an engine, and its sampler.

The fake keeps tokens in pages, as the real one keeps keys and values, and its "logits" are a hash of all tokens that
the page table shows it. So a wrong page, position or context length, a page overwritten by another sequence, or a
sampler that lost its state changes the text. With `state_pages` they are a hash of a recurrent state too, which it
keeps in pages of their own (fake_states.py).
"""

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from app.engine.model_runner import Batch, PromptReader, TokenConstraint, TokenSampler
from app.engine.pages.page_pool import PagePool
from app.engine.searches.methods import Row, make_method
from app.messages.requests import GenerateRequest, SamplingParams
from tests.fake_states import FakeStatePages, recurrent_hash

_WEIGHTS = np.random.default_rng(20).integers(1, 1 << 62, size=1 << 14, dtype=np.int64) | 1
_NEVER_WRITTEN = -1


class FakeSampler:
    """Greedy at temperature 0; otherwise the token depends on the seed and on how many were sampled."""

    def __init__(self, vocab_size: int, prompt: Sequence[int], sampling: SamplingParams, seed: int) -> None:
        if sampling.temperature < 0:
            raise ValueError(f"temperature must be at least 0, not {sampling.temperature}")
        self.vocab_size = vocab_size
        self.seed = seed
        self.prompt_tokens = len(prompt)
        self.drawn = 0
        self.greedy = sampling.temperature == 0

    def sample(self, context_hash: int) -> int:
        self.drawn += 1
        noise = 0 if self.greedy else (self.seed * 1_000_003 + self.drawn) * 0x9E3779B97F4A7C15
        mixed = ((context_hash ^ noise) * 0xD1342543DE82EF95) & 0xFFFF_FFFF_FFFF_FFFF
        return (mixed >> 33) % self.vocab_size

    def remember(self, tokens: Sequence[int]) -> None:
        self.drawn += len(tokens)

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        raise AssertionError("a fake model has no probabilities")


class FakeDraftSampler(FakeSampler):
    """Is as sure of a token as its hash says."""

    def sample(self, context_hash: int) -> int:
        self.probability = (context_hash >> 11) % 100 / 100
        return super().sample(context_hash)

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        logprobs = np.log(np.array([self.probability + 0.001], np.float32))
        return logprobs, np.zeros((1, 0), np.int32), np.zeros((1, 0), np.float32)

    def after(self, token: int) -> "FakeDraftSampler":
        next_one = copy(self)
        next_one.drawn += 1
        return next_one


class FakeCandidates:
    """A search's sampler: its rows depend on all tokens before, and on nothing else."""

    def __init__(self, vocab_size: int, candidates: int, *, alphabet: int) -> None:
        self.vocab_size = vocab_size
        self.candidates = candidates
        self.alphabet = alphabet
        self.row: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None

    def sample(self, context_hash: int) -> int:
        tokens, logprobs = self.row = self.rows(context_hash)
        return int(tokens[0]) if len(logprobs) else -1

    def rows(self, context_hash: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        generator = np.random.default_rng(context_hash & 0xFFFF_FFFF)
        logits = generator.normal(scale=2.0, size=self.alphabet)  # of the first tokens; others are unlikely
        logprobs = logits - np.log(np.exp(logits).sum())
        order = np.argsort(-logprobs, kind="stable")[: self.candidates].astype(np.int32)
        return order, logprobs[order].astype(np.float32)

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        assert self.row is not None, "no row was computed"
        (tokens, logprobs), self.row = self.row, None
        return logprobs[:1], tokens[None], logprobs[None]

    def remember(self, tokens: Sequence[int]) -> None:
        raise AssertionError("a search begins again")

    def after(self, token: int) -> "FakeCandidates":
        return FakeCandidates(self.vocab_size, self.candidates, alphabet=self.alphabet)


class FakeHistory:
    """Keeps tokens in place of states; a similarity is a hash of them and the candidate."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def writer(self) -> "FakeStates":
        return FakeStates(self, writes=True)

    def candidate(self) -> "FakeStates":
        return FakeStates(self, writes=False)


class FakeStates:
    def __init__(self, history: FakeHistory, *, writes: bool) -> None:
        self.history, self.writes = history, writes
        self.similarity = -1.0
        self.token: int | None = None

    def read(self, begin: int, tokens: Sequence[int]) -> None:
        known = len(self.history.tokens)
        if self.writes:
            self.history.tokens += tokens[max(known - begin, 0) :]
        elif begin + len(tokens) == known + 1:
            self.token = tokens[-1]
            self.similarity = fake_similarity([*self.history.tokens, self.token])

    def choose(self) -> None:
        assert self.token is not None, "the candidate was never computed"
        self.history.tokens.append(self.token)


def fake_similarity(tokens: Sequence[int]) -> float:
    return (context_hash(np.array(tokens, np.int64)) >> 7) % 1000 / 1000


def context_hash(tokens: NDArray[np.int64]) -> int:
    """Depends on every token and its place."""
    return int(((tokens + 1) * _WEIGHTS[: len(tokens)]).sum())  # int64 wraps around


def grouped_hash(tokens: NDArray[np.int64], windows: Sequence[int]) -> int:
    """Depends on every token that some page group sees, and its place."""
    hashes = [context_hash(tokens[-window:]) for window in windows]  # of all tokens where it is 0
    return hashes[0] if len(hashes) == 1 else context_hash(np.array(hashes, np.int64))


class FakeRunner:
    """A `ModelRunner`. `before_step` may block, to stop the engine, or raise, to fail the step."""

    def __init__(
        self,
        *,
        vocab_size: int = 1000,
        page_tokens: int = 4,
        kv_pages: int = 64,
        max_sequences: int = 8,
        max_step_tokens: int = 32,
        max_context_tokens: int = 128,
        group_windows: Sequence[int] = (0,),
        state_pages: int = 0,
        before_step: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        self.vocab_size = vocab_size
        self.page_tokens = page_tokens
        self.kv_pages = kv_pages
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.max_context_tokens = max_context_tokens
        self.tier = self.arithmetic = "scalar"
        self.before_step = before_step
        self.steps = 0
        self.step_tokens: list[int] = []
        self.group_windows = tuple(group_windows)
        pages_of_sequence = -(-max_context_tokens // page_tokens)
        groups = len(self.group_windows) + (state_pages > 0)
        self.page_tables = np.full((groups, max_sequences, pages_of_sequence), -7, np.int32)
        self.state_pages = state_pages
        self.states = FakeStatePages(state_pages, page_tokens) if state_pages else None
        self._groups = np.full(kv_pages, -1)  # whose keys and values a page has
        self._pages = np.full((kv_pages, page_tokens), _NEVER_WRITTEN, np.int64)
        self._places = np.full((kv_pages, page_tokens), _NEVER_WRITTEN, np.int64)  # positions of those tokens
        self.state_pool: PagePool | None = None
        """The engine's, if free state pages are to be spoiled before each step."""
        self.has_relative_positions = True
        self.search_alphabet = vocab_size
        """Searches find only the first so many tokens: with few of them, stop tokens end outputs early."""

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> FakeSampler:
        return FakeSampler(self.vocab_size, prompt_token_ids, sampling, seed)

    def make_draft_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int
    ) -> FakeDraftSampler:
        return FakeDraftSampler(self.vocab_size, prompt_token_ids, sampling, seed)

    def make_candidate_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, candidates: int, *, penalizes_logprobs: bool
    ) -> FakeCandidates:
        return FakeCandidates(self.vocab_size, candidates, alphabet=self.search_alphabet)

    def make_history(self) -> FakeHistory:
        return FakeHistory()

    def constrained(self, sampler: TokenSampler, constraint: TokenConstraint) -> TokenSampler:
        raise AssertionError("a fake model obeys no grammar")

    def make_reader(self, request: GenerateRequest) -> PromptReader | None:
        assert not request.needs_scores, "a fake model has no numbers to read"
        return None

    def copy_page(self, source: int, target: int) -> None:
        self._groups[target] = self._groups[source]
        self._pages[target] = self._pages[source]
        self._places[target] = self._places[source]

    def copy_state_page(self, source: int, target: int) -> None:
        assert self.states is not None
        self.states.copy(source, target)

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        self._groups[target] = self._groups[source]
        self._pages[target] = self._pages[source]
        self._places[target] = self._places[source] + positions

    @property
    def gathered_page_bytes(self) -> int:
        return 2 * 8 * self.page_tokens

    def gather_page(self, page: int, out: NDArray[np.uint8]) -> None:
        out[:] = np.concatenate([self._pages[page], self._places[page]]).view(np.uint8)

    def scatter_page(self, page: int, gathered: NDArray[np.uint8]) -> None:
        self._pages[page], self._places[page] = np.split(gathered.view(np.int64), 2)
        self._groups[page] = 0

    def clear_page(self, page: int) -> None:
        self._pages[page] = self._places[page] = _NEVER_WRITTEN

    def release_memory(self) -> None:
        self._pages[:] = self._places[:] = _NEVER_WRITTEN
        if self.states is not None:
            self.states.spoil(range(self.state_pages))

    def step(self, batch: Batch) -> NDArray[np.int32] | None:
        self.before_step(batch)
        if self.states is not None and self.state_pool is not None:
            self.states.spoil(self.state_pool._free)
        self._check(batch)
        self.steps += 1
        self.step_tokens.append(len(batch.token_ids))
        result: list[int] = []
        begin = 0
        written: list[int] = []
        rows: list[int] = []
        recurrent: list[list[int]] = []  # of each sequence, the hash behind each of its tokens
        sequences = list(
            zip(batch.slots.tolist(), batch.query_lengths.tolist(), batch.context_lengths.tolist(), strict=True)
        )
        for slot, count, context in sequences:
            indices = np.arange(context, context + count)
            for group, table in enumerate(self.page_tables[: len(self.group_windows)]):
                pages = table[slot, indices // self.page_tokens]
                assert ((pages >= 0) & (pages < self.kv_pages)).all(), f"slot {slot} has no page for its tokens"
                self._groups[pages] = group
                self._pages[pages, indices % self.page_tokens] = batch.token_ids[begin : begin + count]
                self._places[pages, indices % self.page_tokens] = batch.positions[begin : begin + count]
                written += set(pages.tolist())
            if self.states is not None:
                tokens = batch.token_ids[begin : begin + count].tolist()
                recurrent.append(self.states.compute(self.page_tables[-1, slot], context, tokens))
            reader = batch.readers[len(rows)] if batch.readers else None
            if isinstance(reader, FakeStates):
                reader.read(context, batch.token_ids[begin : begin + count].tolist())
            rows.append(begin)
            begin += count
        assert len(written) == len(set(written)), "two sequences write to one page"
        if self.states is not None:
            self.states.end_step()
        if batch.interrupt is not None and batch.interrupt[0]:  # the worst: all is written, and nothing sampled
            return None
        drafts = [0] * len(sequences) if batch.draft_lengths is None else batch.draft_lengths.tolist()
        for index, (slot, count, context) in enumerate(sequences):
            sampler, guesses = batch.samplers[index], drafts[index]
            assert 0 <= guesses < count
            drawn = [-1] * (1 + guesses)
            for row in range(1 + guesses):
                if sampler is None:
                    break
                length = context + count - guesses + row
                if row and drawn[row - 1] != self._seen(0, slot, context, length)[-1]:
                    break
                state = recurrent[index][length - 1 - context] if recurrent else 0
                drawn[row] = self._sample(slot, context, length, sampler, state)
            result += drawn
        return np.array(result, np.int32)

    def _seen(self, group: int, slot: int, context: int, length: int) -> NDArray[np.int64]:
        """Tokens that the page table shows to the last of `length`; those that the step sees must follow each other."""
        window = self.group_windows[group]
        first = max(context + 1 - window, 0) if window else 0  # of the step's first token
        pages = self.page_tables[group, slot, first // self.page_tokens : -(-length // self.page_tokens)]
        seen = slice(first % self.page_tokens, length - first // self.page_tokens * self.page_tokens)
        places, tokens = (each[pages].reshape(-1)[seen] for each in (self._places, self._pages))
        assert (self._groups[pages] == group).all(), f"slot {slot} of group {group} sees {self._groups[pages]}'s"
        assert (np.diff(places) == 1).all(), f"slot {slot} sees positions {places}"
        assert self._dropped(slot) + length == places[-1] + 1, f"slot {slot} sees positions {places}"
        assert (tokens != _NEVER_WRITTEN).all(), f"slot {slot} sees a place that was never written"
        return tokens[-window:]

    def _dropped(self, slot: int) -> int:
        """How many of the first tokens have left the context, which none does where groups have windows."""
        return 0 if any(self.group_windows) else int(self._places[self.page_tables[0, slot, 0], 0])

    def _hash(self, slot: int, context: int, length: int) -> int:
        hashes = [context_hash(self._seen(group, slot, context, length)) for group in range(len(self.group_windows))]
        return hashes[0] if len(hashes) == 1 else context_hash(np.array(hashes, np.int64))

    def _sample(self, slot: int, context: int, length: int, sampler: TokenSampler, state: int) -> int:
        seen = self._hash(slot, context, length) ^ state
        if isinstance(sampler, FakeCandidates):
            return sampler.sample(seen)
        assert isinstance(sampler, FakeSampler)
        text = length + self._dropped(slot)
        assert text == sampler.prompt_tokens + sampler.drawn, "the sampler and the context disagree"
        return sampler.sample(seen)

    def _check(self, batch: Batch) -> None:
        count = len(batch.slots)
        assert count == len(batch.query_lengths) == len(batch.context_lengths) == len(batch.samplers) > 0
        assert len(set(batch.slots.tolist())) == count, "a slot is used twice"
        assert batch.slots.min() >= 0
        assert batch.slots.max() < self.max_sequences
        assert batch.query_lengths.min() >= 1
        assert len(batch.token_ids) == len(batch.positions) == batch.query_lengths.sum() <= self.max_step_tokens
        assert (batch.context_lengths + batch.query_lengths).max() <= self.max_context_tokens
        for array in (batch.token_ids, batch.positions, batch.slots, batch.query_lengths, batch.context_lengths):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous

    def _expected_hash(self, tokens: list[int]) -> int:
        state = recurrent_hash(tokens, self.page_tokens) if self.states is not None else 0
        return grouped_hash(np.array(tokens, np.int64), self.group_windows) ^ state

    def expected_tokens(
        self, request: GenerateRequest, written: Callable[[Sequence[int]], Sequence[int]] = lambda output: ()
    ) -> tuple[int, ...]:
        """The right output of a request with a seed, or at temperature 0. written: what follows the output so far."""
        assert request.search is None
        sampling = request.sampling
        sampler = self.make_sampler(request.prompt_token_ids, sampling, sampling.seed or 0)
        tokens = list(request.prompt_token_ids)
        output: list[int] = []
        ahead: list[int] = []
        while len(output) < request.max_new_tokens:
            if ahead:
                token = ahead.pop(0)
                sampler.remember([token])
            else:
                token = sampler.sample(self._expected_hash(tokens))
                if token in request.stop_token_ids:
                    break
                ahead += written([*output, token])
            if (
                request.window is not None
                and len(tokens) == request.window.tokens // self.page_tokens * self.page_tokens
            ):
                keep, discard = (
                    -(-count // self.page_tokens) * self.page_tokens
                    for count in (request.window.keep_tokens, request.window.discard_tokens)
                )
                del tokens[keep : keep + discard]
            tokens.append(token)
            output.append(token)
        return tuple(output)

    def expected_answers(self, request: GenerateRequest) -> list[tuple[tuple[int, ...], str]]:
        """The right answers of a search, computed without an engine: each row from all tokens before it."""
        assert request.search is not None
        method = make_method(request.search, request.max_new_tokens, request.stop_token_ids)
        sampler = FakeCandidates(self.vocab_size, method.row_tokens, alphabet=self.search_alphabet)
        texts = [list(request.prompt_token_ids)]
        output: list[int] = []
        while True:
            rows = []
            for text in texts:
                tokens, logprobs = sampler.rows(self._expected_hash(text))
                rows.append(Row(tokens.tolist(), logprobs.tolist(), fake_similarity(text)))
            advance = method.advance(rows)
            output += advance.token_ids
            if advance.finish_reason is not None:
                more = [(answer.token_ids, answer.finish_reason) for answer in advance.more]
                return [(tuple(output), advance.finish_reason), *more]
            texts = [[*texts[index], token] for index, token in advance.children]
