"""Which tokens the next step computes, and for which sequences: integers in, integers out.

There is no prefill phase and no decode phase. A sequence has a length (tokens known) and a count of those whose keys
and values are in its pages; what lies between is computed next, one token of a running output or a chunk of a prompt.

- Budget: a step computes at most `step_tokens`. Sequences with one token to compute (decoding) come first; prompts get
  the rest, but at most `prompt_chunk_tokens` of it while somebody decodes, which bounds the time between two tokens
  (pace.py).
- Fairness: half of what prompts get goes to the oldest of them, so that it surely ends; the rest to those with least
  left, so that a short prompt overtakes a long one.
- Admission: in order of arrival, when a slot is free and the expected peak of memory fits (forecast.py).
- Sharing: a page that is in the prefix cache is not computed again. It is looked up when a prompt comes to it, not only
  on arrival: of several prompts that begin alike one computes the pages, and the others wait for them. At least one
  token is always computed, for its logits. A page is known to others once the step that filled it has succeeded.
- Endless outputs: when a sequence with a window has filled it, whole pages of its oldest tokens leave its page table,
  but not the first ones, whose keys are turned to where they now stand (kernels/kv_turn.h). It can't be computed again,
  so it is never preempted: its window is reserved, and others are admitted only where they could end beside it.
- Preemption: when an older sequence needs a page and none is free, the youngest gives all of its pages back, waits in
  front of all others and is computed again, prompt and output as one prompt. A sequence without anybody younger just
  skips a step. What all of them hold is then already more than there is, so admission lets nobody in until one has
  ended: requests don't chase each other out.
  The oldest is never preempted, and fits alone, so every sequence ends.

Knows nothing of token ids, samplers, arrays or streams: what a page holds is a digest to it.
"""

from collections import deque
from dataclasses import dataclass, field

from app.engine.forecast import OutputForecast, peak_pages
from app.engine.kv_blocks import PagePool
from app.engine.prefix_cache import PageChain
from app.engine.types import ContextWindow, InvalidRequestError, RequestTooLongError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What a step, a sequence and the whole cache can hold."""

    step_tokens: int
    """Tokens of one step."""
    prompt_chunk_tokens: int
    """The most prompt tokens of a step in which somebody decodes."""
    max_sequences: int
    """Sequences with pages at one time: rows of the page table."""
    max_context_tokens: int
    page_tokens: int
    page_count: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.step_tokens < self.max_sequences:
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_sequences ({self.max_sequences}), "
                "so that every sequence can advance in every step"
            )

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    def window(self, prompt_tokens: int, max_new_tokens: int, window: ContextWindow | None) -> "PageWindow | None":
        """A request's window in whole pages; None if it asks for none, or prompt and output fit into it."""
        if window is None or prompt_tokens + max_new_tokens <= window.tokens // self.page_tokens * self.page_tokens:
            return None
        return PageWindow(
            pages=window.tokens // self.page_tokens,
            keep=self.pages_for(window.keep_tokens),
            discard=max(1, self.pages_for(window.discard_tokens)),
        )

    def check(self, prompt_tokens: int, max_new_tokens: int, window: "PageWindow | None" = None) -> None:
        """Raises RequestTooLongError for a request that could never end, InvalidRequestError for too small a window."""
        if window is not None:
            self._check_window(prompt_tokens, window)
            return
        total = prompt_tokens + max_new_tokens
        if total > self.max_context_tokens:
            raise RequestTooLongError(
                f"the prompt has {prompt_tokens} tokens and at most {max_new_tokens} are to be generated: {total} "
                f"together, but the context holds {self.max_context_tokens}"
            )
        # The last token of an output is never read back, so its keys and values are not stored.
        if self.pages_for(max(total - 1, prompt_tokens)) > self.page_count:
            raise RequestTooLongError(
                f"the prompt has {prompt_tokens} tokens and at most {max_new_tokens} are to be generated: {total} "
                f"together, but the KV cache holds {self.page_count * self.page_tokens}"
            )

    def _check_window(self, prompt_tokens: int, window: "PageWindow") -> None:
        tokens = window.pages * self.page_tokens
        if window.pages < window.keep + window.discard + 1:
            raise InvalidRequestError(
                f"the context window has {window.pages} whole pages of {self.page_tokens} tokens: too few to keep "
                f"{window.keep}, discard {window.discard} and go on with the rest"
            )
        if tokens > self.max_context_tokens:
            raise InvalidRequestError(
                f"the context window has {tokens} tokens, but the context holds {self.max_context_tokens}"
            )
        if prompt_tokens > tokens:
            raise RequestTooLongError(f"the prompt has {prompt_tokens} tokens, but the context window holds {tokens}")
        if window.pages + window.keep > self.page_count:
            raise RequestTooLongError(
                f"the context window needs {window.pages + window.keep} pages of {self.page_tokens} tokens (those it "
                f"keeps twice), but the KV cache has {self.page_count}"
            )


@dataclass(frozen=True, slots=True)
class PageWindow:
    """An endless output's context in whole pages."""

    pages: int
    keep: int
    """The first pages, which stay."""
    discard: int
    """Pages that go when all are full: the oldest after those."""


@dataclass(slots=True, eq=False)
class SequenceState:
    """One sequence as the scheduler sees it."""

    prompt_tokens: int
    max_new_tokens: int
    chain: PageChain | None = None
    """Digests of its pages; None: they are not shared."""
    window: PageWindow | None = None
    """None: prompt and output fit the context."""
    length: int = field(init=False)
    """Tokens known: the prompt and the output so far, without those that have left the window."""
    end_length: int = field(init=False)
    """`length` when the output will be full."""
    dropped: int = 0
    """Tokens that have left the window; a token's position is its index and these."""
    sinks: list[int] = field(default_factory=list)
    """The window's first pages as they were computed, once `pages` has copies of them at later positions."""
    drafts: int = 0
    """Guesses of its next tokens that may be computed with the next one; only if all others decode too."""
    computed: int = 0
    """Of those, the tokens whose keys and values are in the pages."""
    pages: list[int] = field(default_factory=list)
    slot: int = -1
    """Row of the page table while it runs; -1 while it waits and when it has ended."""
    planned: int = 0
    """Tokens it is to get in the step being made."""
    kept_pages: int = 0
    """Of the pages, those from the first on that were offered to the prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens that it found in the prefix cache when it first ran."""
    restarted: bool = False
    """Whether it gave pages back: what it finds from then on may be its own."""

    def __post_init__(self) -> None:
        self.length = self.prompt_tokens
        self.end_length = self.prompt_tokens + self.max_new_tokens

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return self.max_new_tokens - (self.end_length - self.length)


@dataclass(slots=True)
class Step:
    """One step's work: parallel lists over its sequences, oldest first."""

    sequences: list[SequenceState] = field(default_factory=list)
    query_lengths: list[int] = field(default_factory=list)
    """Tokens to compute: those from `computed` on, and guesses beyond `length`."""
    samples: list[bool] = field(default_factory=list)
    """Whether they reach the sequence's length, so that its next token can be sampled."""
    new_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, index, page): page table entries to write before the step."""
    dropped: list[tuple[SequenceState, int, int]] = field(default_factory=list)
    """(sequence, begin, end): tokens that have left its window."""
    turned_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(source, target, positions): pages to copy before the step, their keys turned by so many positions."""


class Scheduler:
    """Keeps the waiting and the running sequences, both in order of arrival, all running ones before all waiting."""

    def __init__(self, limits: SchedulerLimits, *, expected_output_tokens: int = 256) -> None:
        """`expected_output_tokens`: what admission expects of an output until some have ended."""
        self.limits = limits
        self.pool = PagePool(limits.page_count)
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.preemptions = 0
        self._free_slots = list(range(limits.max_sequences - 1, -1, -1))
        self._forecast = OutputForecast(expected_output_tokens)
        self.prompt_chunk_tokens = limits.prompt_chunk_tokens
        """Prompt tokens of the next step if somebody decodes in it: whoever measures steps may lower it."""
        self._admission_open = True
        self._reserved_pages = 0  # by running sequences with a window

    def add(self, sequence: SequenceState) -> None:
        """Queues a sequence that `limits.check` accepts."""
        self.waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Takes out a sequence that has ended or was aborted, wherever it is; its pages and slot are free at once."""
        if sequence.slot >= 0:
            self.running.remove(sequence)
            self._give_back(sequence)
            if sequence.window is not None:
                self._reserved_pages -= self._most_pages(sequence)
            self._forecast.record(sequence.generated)
        else:
            self.waiting.remove(sequence)
        self._admission_open = True

    def schedule(self) -> Step:
        """Makes the next step; empty only if there is no sequence at all."""
        if self.waiting:
            self._admit()
        step = Step()
        self._plan(step)
        index = 0
        while index < len(self.running):  # it may lose its tail to preemption meanwhile
            sequence = self.running[index]
            count = sequence.planned
            if count and sequence.computed + count > len(sequence.pages) * self.limits.page_tokens:
                count = self._claim_pages(sequence, count, step)
            if count:
                step.sequences.append(sequence)
                step.query_lengths.append(count)
                step.samples.append(sequence.computed + count >= sequence.length)
            index += 1
        return step

    def complete(self, step: Step) -> None:
        """The step was run: its tokens are in the pages, and full pages may be shared."""
        for sequence, count in zip(step.sequences, step.query_lengths, strict=True):
            sequence.computed += count
            if count > 1:  # pages that outputs fill are kept when the next page is claimed, or at the end
                self._keep_pages(sequence)

    def _admit(self) -> None:
        """Gives slots to waiting sequences, in order, as long as the expected peak of memory fits."""
        while self.waiting and self._free_slots and self._admission_open:
            sequence = self.waiting[0]
            if self.running and not self._fits(sequence):
                self._admission_open = False
                return
            self.waiting.popleft()
            if sequence.window is not None:
                self._reserved_pages += self._most_pages(sequence)
            sequence.slot = self._free_slots.pop()
            self.running.append(sequence)

    def _fits(self, candidate: SequenceState) -> bool:
        """Whether all will fit, as far as one can tell, and each could end beside those that are never preempted."""
        reserved = self._reserved_pages + self._most_pages(candidate)
        if candidate.window is not None:
            others = (self._most_pages(sequence) for sequence in self.running if sequence.window is None)
            reserved += max(others, default=0)
        if (self._reserved_pages or candidate.window is not None) and reserved > self.pool.page_count:
            return False
        return self._expected_peak_pages(candidate) <= self.pool.page_count

    def _most_pages(self, sequence: SequenceState) -> int:
        if sequence.window is not None:
            return sequence.window.pages + sequence.window.keep
        return self.limits.pages_for(max(sequence.end_length - 1, sequence.prompt_tokens))

    def _expected_peak_pages(self, candidate: SequenceState) -> int:
        expected = []
        for sequence in (*self.running, candidate):
            most = sequence.end_length - 1
            if sequence.window is not None:
                most = max(sequence.length, sequence.window.pages * self.limits.page_tokens)
            remaining = min(self._forecast.remaining(sequence.generated), max(most - sequence.length, 0))
            expected.append((sequence.length, remaining))
        return peak_pages(expected, self.limits.page_tokens) - self.pool.repeat_count

    def _plan(self, step: Step) -> None:
        """Splits the token budget: sets `planned` of every running sequence. Shared pages go to their readers."""
        prompts = []
        for sequence in self.running:
            if sequence.length - sequence.computed > 1 and sequence.chain is not None:
                self._find_pages(sequence, sequence.chain, step)
            if sequence.length - sequence.computed == 1:
                sequence.planned = 1 + sequence.drafts
            else:
                sequence.planned = 0
                prompts.append(sequence)
        if not prompts:
            return
        for sequence in self.running:
            sequence.planned = min(sequence.planned, 1)
        decoding = len(self.running) - len(prompts)
        budget = self.limits.step_tokens - decoding
        if decoding:
            budget = min(budget, self.prompt_chunk_tokens)
        oldest = prompts[0]
        oldest.planned = min(oldest.length - oldest.computed, (budget + 1) // 2)
        budget -= oldest.planned
        for sequence in sorted(
            self._leaders(prompts), key=lambda prompt: prompt.length - prompt.computed - prompt.planned
        ):
            more = min(sequence.length - sequence.computed - sequence.planned, budget)
            sequence.planned += more
            budget -= more

    def _find_pages(self, sequence: SequenceState, chain: PageChain, step: Step) -> None:
        """Gives the sequence those of its next pages that are in the prefix cache."""
        page_tokens = self.limits.page_tokens
        pages = sequence.pages
        found = 0
        if len(pages) * page_tokens == sequence.computed:
            while len(pages) < (sequence.length - 1) // page_tokens:
                page = self.pool.find(chain.digest(len(pages)))
                if page is None:
                    break
                step.new_pages.append((sequence.slot, len(pages), page))
                pages.append(page)
                found += 1
        if found:
            sequence.computed += found * page_tokens
            sequence.kept_pages = len(pages)
            if not sequence.restarted:
                sequence.cached_tokens += found * page_tokens

    def _keep_pages(self, sequence: SequenceState) -> None:
        """Offers the full pages of the sequence to the prefix cache."""
        full = min(sequence.computed, sequence.length) // self.limits.page_tokens
        if sequence.kept_pages < full and sequence.chain is not None:
            for index in range(sequence.kept_pages, full):
                self.pool.keep(sequence.pages[index], sequence.chain.digest(index))
            sequence.kept_pages = full

    def _leaders(self, prompts: list[SequenceState]) -> list[SequenceState]:
        """The prompts without those that had better wait for a page that another one is computing.

        The oldest never waits, nor does one that is inside a page: it must end it.
        """
        page_tokens = self.limits.page_tokens
        leaders: list[SequenceState] = []
        coming: set[bytes] = set()
        followers = []
        for sequence in prompts:
            index = sequence.computed // page_tokens
            if sequence.chain is None or index >= (sequence.length - 1) // page_tokens:
                leaders.append(sequence)
            elif sequence.computed % page_tokens or sequence is prompts[0]:
                leaders.append(sequence)
                coming.add(sequence.chain.digest(index))
            else:
                followers.append((sequence, sequence.chain.digest(index)))
        followers.sort(key=lambda pair: pair[0].length - pair[0].computed)  # the first to end leads
        for sequence, digest in followers:
            if digest not in coming:
                coming.add(digest)
                leaders.append(sequence)
        return leaders

    def _claim_pages(self, sequence: SequenceState, count: int, step: Step) -> int:
        """Gets pages for `count` more tokens of `sequence`; returns for how many there is place.

        A chunk shrinks to the place there is; only if there is none at all does the youngest lose its own.
        """
        page_tokens = self.limits.page_tokens
        self._keep_pages(sequence)
        if sequence.window is not None:
            if sequence.computed == sequence.window.pages * page_tokens and not self._shift(
                sequence, sequence.window, step
            ):
                return 0
            count = min(count, sequence.window.pages * page_tokens - sequence.computed)
        needed = self.limits.pages_for(sequence.computed + count) - len(sequence.pages)
        if sequence.computed == len(sequence.pages) * page_tokens:
            self._free_by_preemption(1, sequence)
        first = len(sequence.pages)
        sequence.pages += self.pool.take(min(needed, self.pool.free_count))
        for index in range(first, len(sequence.pages)):
            step.new_pages.append((sequence.slot, index, sequence.pages[index]))
        return min(count, len(sequence.pages) * self.limits.page_tokens - sequence.computed)

    def _shift(self, sequence: SequenceState, window: PageWindow, step: Step) -> bool:
        """Takes the oldest pages after the first ones out of a full window; False if there is no place for copies."""
        discarded = sequence.pages[window.keep : window.keep + window.discard]
        if not sequence.sinks and window.keep:
            own = sum(self.pool.holders(page) == 1 for page in discarded)
            self._free_by_preemption(window.keep - own, sequence)
            if self.pool.free_count + own < window.keep:
                return False
        self.pool.release(reversed(discarded))
        if not sequence.sinks and window.keep:
            sequence.sinks = sequence.pages[: window.keep]
            sequence.pages[: window.keep] = self.pool.take(window.keep)
        del sequence.pages[window.keep : window.keep + window.discard]
        begin, tokens = window.keep * self.limits.page_tokens, window.discard * self.limits.page_tokens
        sequence.chain = None  # what follows depends on what was dropped
        sequence.computed -= tokens
        sequence.length -= tokens
        sequence.end_length -= tokens
        sequence.dropped += tokens
        step.dropped.append((sequence, begin, begin + tokens))
        step.new_pages += [(sequence.slot, index, page) for index, page in enumerate(sequence.pages)]
        step.turned_pages += [
            (source, target, sequence.dropped)
            for source, target in zip(sequence.sinks, sequence.pages[: window.keep], strict=True)
        ]
        return True

    def _free_by_preemption(self, pages: int, claimant: SequenceState) -> None:
        """Takes pages from those who came after the claimant, the youngest first, until so many are free."""
        index = len(self.running) - 1
        while self.pool.free_count < pages and self.running[index] is not claimant:
            if self.running[index].window is None:
                self._preempt(self.running[index])
            index -= 1

    def _preempt(self, sequence: SequenceState) -> None:
        if sequence.computed:
            self.preemptions += 1
        self.running.remove(sequence)
        self._give_back(sequence)
        self.waiting.appendleft(sequence)

    def _give_back(self, sequence: SequenceState) -> None:
        """Its pages and its slot are free; of the cached ones those at its end are forgotten first."""
        self._keep_pages(sequence)
        self.pool.release(reversed(sequence.pages))
        self.pool.release(reversed(sequence.sinks))
        sequence.pages = []
        sequence.sinks = []
        sequence.computed = sequence.kept_pages = 0
        sequence.restarted = True
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
