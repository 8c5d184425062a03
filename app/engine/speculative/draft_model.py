"""A second, smaller model that drafts for the target, with KV pages of its own.

It has read a text as far as its pages have it: that is compared with the text before each use, so wrong drafts,
preemptions and answers that were drafted in other ways need no word. Its pages are named like the target's, so a prompt
that begins alike is not computed again. Those of users whose pages are saved must be gone when their user is: it
remembers whose they are, and overwrites what is not cached. A sequence without a page or slot gets no drafts.

Knows neither when drafts pay nor how the target computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.engine.generation import Generation
from app.engine.model_runner import Batch, ModelRunner, TokenSampler
from app.engine.pages.page_groups import PageGroups, name_in_group
from app.engine.pages.page_pool import PagePool
from app.engine.pages.prefix_cache import PrefixCache
from app.engine.scheduling.sequence import SequenceState
from app.engine.speculative.draft_source import DraftToken
from app.engine.speculative.request_draws import RequestDraws

KIND: Final = "model"
_WITH_DRAFT: Final = 17
"""So many tokens that it has not read yet are computed with the first draft token, at most: it does not lag behind."""


@dataclass(slots=True)
class _Text:
    """What the draft model has read of one sequence."""

    slot: int
    draws: RequestDraws
    is_kept: bool
    """Whether its full pages stay cached."""
    owner: str | None
    """Whose pages they are, which must be gone when the user is; None: nobody's who has saved pages."""
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    """Tokens in the pages, the drafted ones included."""
    begin: int = 0
    """Tokens before this index are known to be the text's."""
    drafted: list[int] = field(default_factory=list)
    """The tokens in the pages from `begin` on."""
    kept_pages: int = 0
    drawing: TokenSampler | None = None
    """Draws the drafts of this step."""
    is_lost: bool = False
    """Whether it can't be read any more: tokens left the context, or one is not in the vocabulary."""


class DraftModel:
    """A `DraftSource` that owns the draft model's runner."""

    kind = KIND

    def __init__(self, runner: ModelRunner, *, target_vocab_size: int, most_tokens: int, cost_share: float) -> None:
        """runner: of a model with one page group and without states; its `max_sequences` bound those that draft.

        cost_share: as in `DraftSource`.

        Raises ValueError for another one, or for a number of tokens below 1.
        """
        if tuple(runner.group_windows) != (0,) or runner.state_pages:
            raise ValueError("a draft model can have neither page groups nor recurrent states")
        if most_tokens < 1:
            raise ValueError(f"a draft model drafts at least 1 token, not {most_tokens}")
        self.most_tokens = most_tokens
        self.cost_share = cost_share
        self._runner = runner
        self._with_draft = min(_WITH_DRAFT, runner.max_step_tokens // runner.max_sequences)
        self._target_vocab_size = target_vocab_size
        self._vocab_size = min(target_vocab_size, runner.vocab_size)
        self._owners: dict[bytes, str] = {}  # of cached pages, by name: whose they are
        self._pool = PagePool(runner.kv_pages, self._evicted)
        self._cache = PrefixCache(self._pool, PageGroups((0,), runner.page_tokens))
        self._texts: dict[SequenceState, _Text] = {}
        self._free_slots = list(range(runner.max_sequences - 1, -1, -1))

    def lag(self, generation: Generation) -> int | None:
        """As `DraftSource.lag`; finds what is cached of its text."""
        text = self._text(generation)
        if text is None:
            return None
        self._compare(text, generation)
        missing = len(generation.tokens) - text.computed
        return 0 if missing <= self._with_draft else missing - 1

    def follow(self, generation: Generation, tokens: int) -> None:
        """As `DraftSource.follow`."""
        text = self._texts[generation.sequence]
        begin = text.computed
        count = min(tokens, len(generation.tokens) - 1 - begin, self._runner.max_step_tokens)
        known = generation.tokens[begin : begin + count]
        if count < 1 or not self._can_read(text, known):
            return
        self._step([(text, known, None)], prompts=1)
        self._settle(text, generation)

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """As `DraftSource.draft`."""
        rows: list[tuple[_Text, list[int], TokenSampler | None]] = []
        places: list[int] = []
        for place, generation in enumerate(generations):
            text = self._texts[generation.sequence]
            if generation.draft_tokens:
                new = generation.draft_tokens[-1:]
                text.drafted += new
            else:
                self._compare(text, generation)
                new = generation.tokens[text.computed :]
                text.begin, text.drafted = len(generation.tokens), []
            if not self._can_read(text, new):
                continue
            if not generation.draft_tokens:
                text.drawing = text.draws.begin(generation)
            rows.append((text, new, text.drawing))
            places.append(place)
        drafts: list[DraftToken | None] = [None] * len(generations)
        if rows:
            for place, (text, _, sampler), token in zip(places, rows, self._step(rows), strict=True):
                if token < self._vocab_size and sampler is not None:
                    drafts[place] = DraftToken(token, float(np.exp(sampler.take_scores()[0][-1])))
                if not generations[place].draft_tokens:
                    self._settle(text, generations[place])
        return drafts

    def forget(self, sequence: SequenceState) -> None:
        """As `DraftSource.forget`. Its full pages stay cached."""
        text = self._texts.pop(sequence, None)
        if text is not None:
            self._release(text)
            self._free_slots.append(text.slot)

    def pause(self, sequence: SequenceState) -> None:
        """As `DraftSource.pause`: gives back its slot and its pages."""
        self.forget(sequence)

    def clear(self, owner: str) -> None:
        """As `DraftSource.clear`."""
        for name in [name for name, whose in self._owners.items() if whose == owner]:
            del self._owners[name]
            page = self._pool.forget(name)
            if page is not None:
                self._runner.clear_page(page)
        for text in self._texts.values():
            if text.owner == owner:
                text.is_kept = False

    def release_memory(self) -> None:
        """As `DraftSource.release_memory`."""
        self._pool.evict_all()
        self._runner.release_memory()

    def _evicted(self, page: int, name: bytes) -> None:
        self._owners.pop(name, None)

    def _text(self, generation: Generation) -> _Text | None:
        """What it has of a sequence that it can draft for; None: it can't."""
        sequence = generation.sequence
        text = self._texts.get(sequence)
        if text is None:
            if not self._free_slots:
                return None
            owner = None if sequence.grant is None else sequence.grant.owner
            is_kept = sequence.chain is not None
            text = _Text(self._free_slots.pop(), RequestDraws(self._runner), is_kept, owner)
            self._texts[sequence] = text
            text.is_lost = not self._knows(generation)
        too_long = len(generation.tokens) + self.most_tokens > self._runner.max_context_tokens
        if sequence.dropped or too_long or text.is_lost:
            self._lose(text)
            return None
        chain, page_tokens = sequence.chain, self._runner.page_tokens
        if not text.pages and chain is not None and text.is_kept:
            found = self._cache.longest(chain, 0, (len(generation.tokens) - 1) // page_tokens)
            text.pages = self._cache.find(chain, 0, found)
            text.computed = text.begin = found * page_tokens
            text.kept_pages = found
            self._runner.page_tables[0, text.slot, :found] = text.pages
        needed = self._pages_for(len(generation.tokens) + self.most_tokens) - len(text.pages)
        return None if needed > self._pool.free_count else text

    def _knows(self, generation: Generation) -> bool:
        """Whether the request's own tokens and its grammar's masks fit this model's vocabulary."""
        own, request = self._runner.vocab_size, generation.request
        if own == self._target_vocab_size:
            return True
        if generation.constraint is not None and -(-own // 32) != -(-self._target_vocab_size // 32):
            return False
        sampling = request.sampling
        return max((*request.prompt_token_ids, *sampling.end_token_ids, *sampling.logit_bias)) < own

    def _lose(self, text: _Text) -> None:
        text.is_lost = True
        self._release(text)

    def _release(self, text: _Text) -> None:
        self._pool.release(reversed(text.pages))
        if text.owner is not None:
            for page in text.pages:
                if not self._pool.holders(page) and not self._pool.is_cached(page):
                    self._runner.clear_page(page)
        text.pages, text.computed = [], 0

    def _compare(self, text: _Text, generation: Generation) -> None:
        """Drops what is not the text's from the pages: drafts that were wrong."""
        if text.computed <= text.begin:
            return
        known = generation.tokens[text.begin : text.begin + len(text.drafted)]
        right = next((i for i, (a, b) in enumerate(zip(text.drafted, known, strict=False)) if a != b), len(known))
        text.computed = min(text.computed, text.begin + right)
        text.begin, text.drafted = text.computed, []

    def _can_read(self, text: _Text, tokens: Sequence[int]) -> bool:
        """Whether it knows the tokens and has pages for them, which are allocated."""
        if not tokens:  # the text was shifted since `lag`, or the step before was interrupted
            return False
        if max(tokens) >= self._runner.vocab_size:
            text.is_lost = True
            return False
        first = len(text.pages)
        needed = self._pages_for(text.computed + len(tokens)) - first
        if needed > self._pool.free_count:
            return False
        if needed > 0:
            text.pages += self._pool.allocate(needed)
            self._runner.page_tables[0, text.slot, first : len(text.pages)] = text.pages[first:]
        return True

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._runner.page_tokens)

    def _settle(self, text: _Text, generation: Generation) -> None:
        """Caches the pages that are full of the text's tokens."""
        chain = generation.sequence.chain
        full = min(text.computed, len(generation.tokens)) // self._runner.page_tokens
        if chain is not None and text.is_kept and text.kept_pages < full:
            self._cache.cache(chain, text.pages, text.kept_pages, full)
            if text.owner is not None:
                names = (name_in_group(chain.digest(index), 0) for index in range(text.kept_pages, full))
                self._owners.update(dict.fromkeys(names, text.owner))
            text.kept_pages = full
        text.begin = max(text.begin, min(text.computed, len(generation.tokens)))

    def _step(self, rows: Sequence[tuple[_Text, list[int], TokenSampler | None]], prompts: int = 0) -> list[int]:
        """Computes tokens of texts behind those in their pages; returns what the samplers have drawn."""
        counts = [len(tokens) for _, tokens, _ in rows]
        contexts = [text.computed for text, _, _ in rows]
        positions = [np.arange(begin, begin + count) for begin, count in zip(contexts, counts, strict=True)]
        batch = Batch(
            token_ids=np.concatenate([np.array(tokens, np.int32) for _, tokens, _ in rows]),
            positions=np.concatenate(positions).astype(np.int32),
            slots=np.array([text.slot for text, _, _ in rows], np.int32),
            query_lengths=np.array(counts, np.int32),
            context_lengths=np.array(contexts, np.int32),
            samplers=[sampler for _, _, sampler in rows],
            prompts=prompts,
        )
        sampled = self._runner.step(batch)
        assert sampled is not None, "nothing interrupts a draft"
        for text, tokens, _ in rows:
            text.computed += len(tokens)
        drawn: list[int] = sampled.tolist()
        return drawn
