"""A generation: one sequence for which the engine generates tokens, with its request, sampler and output so far.

Most requests are one generation. A search (`searches/branches.py`) is one request with several generations, which share
a `SequenceGroup`. Knows neither how tokens are drafted, nor how a search works, nor when a step runs.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from app.engine.model_runner import PromptReader, StateReader, TokenConstraint, TokenSampler
from app.engine.pages.page_names import PageChain
from app.engine.scheduling.limits import PageWindow
from app.engine.scheduling.sequence import SequenceState
from app.messages.failures import EngineError
from app.messages.outputs import PromptResult, TokenDelta, TokenScores
from app.messages.requests import GenerateRequest, Priority
from app.messages.thoughts import ThoughtWatch

Event = TokenDelta | EngineError
Deliver = Callable[[Sequence[tuple[object, Event]]], None]
"""Receives all events of one step for the requests submitted with it, as (key, event). It is called in the outbox's
thread, one step after another, and must be quick: the engine waits before it is a second step ahead. If it raises,
those requests are aborted."""


class Drafter(Protocol):
    """Drafts the next tokens of one output from the text so far, which is the generation's `tokens`."""

    def look_up(self, most: int) -> list[int]:
        """Returns at most `most` draft tokens, in order."""

    def chances(self) -> list[float]:
        """For each draft token, the probability that it and all before it are accepted. The list may be shorter."""

    def learn(self, sampled: Sequence[int]) -> None:
        """Takes the tokens that were sampled after `look_up`; empty if none were."""

    def forget(self) -> None:
        """Drops the index, because tokens were removed from the text."""


class Generation:
    """One sequence inside the engine. Once submitted, only the engine's thread uses it."""

    __slots__ = (
        "_scores",
        "_scores_taken",
        "aborted",
        "constraint",
        "deliver",
        "draft_tokens",
        "drafter",
        "ended",
        "key",
        "may_draft",
        "prompt_reader",
        "request",
        "sampler",
        "seed",
        "sequence",
        "state_reader",
        "submitted_s",
        "thought",
        "tokens",
    )

    def __init__(
        self,
        request: GenerateRequest,
        sampler: TokenSampler | None,
        deliver: Deliver,
        key: object,
        tokens: list[int],
        sequence: SequenceState,
        *,
        drafter: Drafter | None = None,
        seed: int = 0,
        prompt_reader: PromptReader | None = None,
        state_reader: StateReader | None = None,
        constraint: TokenConstraint | None = None,
        thought: ThoughtWatch | None = None,
    ) -> None:
        """Stores its arguments.

        sampler: None samples no token at the end of the sequence.
        tokens: prompt and output. The page digests of `sequence` and the drafter read this same list.
        drafter: None: nothing is looked up in the text.
        seed: the sampler's.
        prompt_reader: gathers the request's PromptResult; becomes None once the result was taken.
        state_reader: a search's reader of hidden states. A generation has at most one of the two readers.
        """
        self.request = request
        self.sampler = sampler
        self.deliver = deliver
        self.key = key
        self.tokens = tokens
        self.sequence = sequence
        self.drafter = drafter
        self.draft_tokens: list[int] = []  # draft tokens of the next step
        self.may_draft = False
        """Whether it may have draft tokens: a search allows none."""
        self.seed = seed
        self.submitted_s: float | None = None
        """Arrival time on the monotonic clock, in seconds; None once the request has run."""
        self.aborted = False
        self.ended = False
        self.prompt_reader = prompt_reader
        self.state_reader = state_reader
        self.constraint = constraint
        self._scores: TokenScores | None = None  # of the tokens sampled in one step
        self._scores_taken = 0
        self.thought = thought
        """Says when a thought must end; None: there is no budget, or no thought can follow."""

    @staticmethod
    def of(
        request: GenerateRequest,
        sampler: TokenSampler,
        deliver: Deliver,
        key: object,
        *,
        page_tokens: int,
        salt: bytes | None,
        has_memory: bool = False,
        window: PageWindow | None = None,
        seed: int = 0,
        prompt_reader: PromptReader | None = None,
        constraint: TokenConstraint | None = None,
        thought: ThoughtWatch | None = None,
    ) -> "Generation":
        """Makes the first generation of a new request.

        salt: start of the chain of page digests; None: pages are not shared.
        has_memory: whether KV pages may be loaded and saved under the request's grant.
        """
        tokens = [*request.prompt_token_ids, *request.resumed_token_ids]
        chain = PageChain(tokens, page_tokens, salt) if salt is not None else None
        if chain is not None and len(tokens) > page_tokens:
            # Hash the prompt here, on the caller's thread, to spare the engine's thread the work.
            chain.digest(len(tokens) // page_tokens - 1)
        sequence = SequenceState(len(request.prompt_token_ids), request.max_new_tokens, chain, window)
        if request.resumed_token_ids:  # resume as after a preemption
            sequence.length = len(tokens)
            sequence.restarted = True
        sequence.caller = request.tenant + request.client
        sequence.is_batch = request.priority is Priority.BATCH
        if has_memory and chain is not None:
            sequence.grant = request.memory
        generation = Generation(
            request,
            sampler,
            deliver,
            key,
            tokens,
            sequence,
            seed=seed,
            prompt_reader=prompt_reader,
            constraint=constraint,
            thought=thought,
        )
        generation.submitted_s = time.monotonic()
        return generation

    def free(self, drafts: Sequence[int]) -> int:
        """How many of the draft tokens may follow the text, one after another.

        The end of a thought can't replace tokens that the sampler has taken, and a grammar's end comes alone.
        """
        free = len(drafts) if self.thought is None else self.thought.free(drafts)
        if self.constraint is not None:
            free = min(free, self.constraint.follows(drafts))
            ends = self.request.stop_token_ids
            free = next((place for place, token in enumerate(drafts[:free]) if token in ends), free)
        return free

    def end_thought(self, sampled: int) -> tuple[int, ...]:
        """Writes what must follow the sampled token, which is in `tokens`, as if it had been sampled, and returns it.

        The next step computes it at once, as it computes the output of a preempted sequence again.
        """
        assert self.thought is not None
        assert self.sampler is not None
        sequence = self.sequence
        written = self.thought.add(sampled)[: sequence.end_length - sequence.length]
        if written:
            for token in written:
                self.thought.add(token)
            self.sampler.remember(written)
            self.tokens += written
            sequence.length += len(written)
            sequence.restarted = True  # pages that it finds are not its prompt's
        if self.thought.is_over:
            self.thought = None
        return written

    def drop(self, begin: int, end: int) -> None:
        """Removes tokens [begin, end), which have left the context window."""
        del self.tokens[begin:end]
        if self.drafter is not None:
            self.drafter.forget()

    def take_scores(self) -> TokenScores:
        """Returns the scores of the next token that was sampled: a step with drafts samples several."""
        if self._scores is None or self._scores_taken == len(self._scores.logprobs):
            assert self.sampler is not None
            self._scores, self._scores_taken = TokenScores(*self.sampler.take_scores()), 0
        scores, place = self._scores, slice(self._scores_taken, self._scores_taken + 1)
        self._scores_taken += 1
        return TokenScores(scores.logprobs[place], scores.top_token_ids[place], scores.top_logprobs[place])

    def take_prompt_result(self) -> PromptResult | None:
        """Returns the PromptResult once; None afterwards. Call it when the whole prompt has been computed."""
        if self.prompt_reader is None:
            return None
        result, self.prompt_reader = self.prompt_reader.result(), None
        return result
