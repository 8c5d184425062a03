"""A request inside the engine, and the arrays of a step made from many of them.

The arrays are allocated once and filled from Python lists: about a microsecond per running request. Knows nothing of
when a step is made or what becomes of its result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.engine.drafter import NgramDrafter
from app.engine.limits import PageWindow
from app.engine.prefix_cache import PageChain
from app.engine.sequence import SequenceState, Step
from app.engine.types import (
    Batch,
    EngineError,
    GenerateRequest,
    PromptReader,
    PromptResult,
    StateReader,
    TokenConstraint,
    TokenDelta,
    TokenSampler,
)

if TYPE_CHECKING:
    from app.engine.branches import Search

Event = TokenDelta | EngineError
Deliver = Callable[[Sequence[tuple[object, Event]]], None]
"""Gets all events of one step for the requests submitted with it, as (key, event). Called on the engine's thread: it
must be quick and must not block. If it raises, those requests are aborted."""


class Generation:
    """A request on its way through the engine, or one branch of a search."""

    __slots__ = (
        "aborted",
        "constraint",
        "deliver",
        "drafter",
        "ended",
        "guesses",
        "key",
        "reader",
        "request",
        "sampler",
        "search",
        "sequence",
        "states",
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
        drafter: bool = False,
        reader: PromptReader | None = None,
        constraint: TokenConstraint | None = None,
        search: "Search | None" = None,
        states: StateReader | None = None,
    ) -> None:
        """`tokens`: prompt and output, the list that digests are made of. `drafter`: whether to guess."""
        self.request = request
        self.sampler = sampler  # None: nothing is sampled at its end
        self.deliver = deliver
        self.key = key
        self.tokens = tokens
        self.sequence = sequence
        self.drafter = NgramDrafter(tokens) if drafter else None
        self.guesses: list[int] = []  # of the next step
        self.aborted = False
        self.ended = False
        self.reader = reader  # None when its result was taken, too
        self.constraint = constraint
        self.search = search
        self.states = states

    @staticmethod
    def of(
        request: GenerateRequest,
        sampler: TokenSampler,
        deliver: Deliver,
        key: object,
        *,
        page_tokens: int,
        salt: bytes | None,
        window: PageWindow | None = None,
        drafter: bool = False,
        reader: PromptReader | None = None,
        constraint: TokenConstraint | None = None,
    ) -> "Generation":
        """A new request. `salt`: where the digests of its pages begin; None: they are not shared."""
        tokens = list(request.prompt_token_ids)  # and then the output
        chain = PageChain(tokens, page_tokens, salt) if salt is not None else None
        if chain is not None and len(tokens) > page_tokens:
            chain.digest(len(tokens) // page_tokens - 1)  # the prompt's, here and not on the engine's thread
        sequence = SequenceState(len(tokens), request.max_new_tokens, chain, window)
        return Generation(
            request, sampler, deliver, key, tokens, sequence, drafter=drafter, reader=reader, constraint=constraint
        )

    def drop(self, begin: int, end: int) -> None:
        """Tokens [begin, end) have left the window."""
        del self.tokens[begin:end]
        if self.drafter is not None:
            self.drafter.forget()

    def take_prompt_result(self) -> PromptResult | None:
        """What came of the prompt, once; the prompt went through the model."""
        if self.reader is None:
            return None
        result, self.reader = self.reader.result(), None
        return result


class BatchArrays:
    """The step's arrays, allocated once; a batch is views of their beginnings."""

    def __init__(self, step_tokens: int, max_sequences: int) -> None:
        self._token_ids = np.zeros(step_tokens, np.int32)
        self._positions = np.zeros(step_tokens, np.int32)
        self._slots = np.zeros(max_sequences, np.int32)
        self._query_lengths = np.zeros(max_sequences, np.int32)
        self._context_lengths = np.zeros(max_sequences, np.int32)

    def fill(self, step: Step, generations: Mapping[SequenceState, Generation]) -> Batch:
        """Writes the step's tokens and positions; the batch is valid until the next call."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        context_lengths: list[int] = []
        samplers: list[TokenSampler | None] = []
        readers: list[PromptReader | StateReader | None] = []
        reads = False
        drafts: dict[int, int] = {}
        for sequence, count, sample in zip(step.sequences, step.query_lengths, step.samples, strict=True):
            generation = generations[sequence]
            begin = sequence.computed
            if count == 1:
                token_ids.append(generation.tokens[begin])
                positions.append(begin + sequence.dropped)
            else:
                token_ids += generation.tokens[begin : begin + count]
                guesses = begin + count - sequence.length
                if guesses > 0:
                    token_ids += generation.guesses[:guesses]
                    drafts[len(slots)] = guesses
                begin_position = begin + sequence.dropped
                positions += range(begin_position, begin_position + count)
            slots.append(sequence.slot)
            context_lengths.append(begin)
            samplers.append(generation.sampler if sample and generation.request.max_new_tokens else None)
            reader = generation.reader if generation.search is None else generation.states
            readers.append(reader)
            reads = reads or reader is not None
        total, count = len(token_ids), len(slots)
        self._token_ids[:total] = token_ids
        self._positions[:total] = positions
        self._slots[:count] = slots
        self._query_lengths[:count] = step.query_lengths
        self._context_lengths[:count] = context_lengths
        return Batch(
            token_ids=self._token_ids[:total],
            positions=self._positions[:total],
            slots=self._slots[:count],
            query_lengths=self._query_lengths[:count],
            context_lengths=self._context_lengths[:count],
            samplers=samplers,
            readers=readers if reads else (),
            draft_lengths=self._drafts(drafts, count) if drafts else None,
            prompts=step.prompts,
        )

    @staticmethod
    def _drafts(drafts: Mapping[int, int], count: int) -> NDArray[np.int32]:
        lengths = np.zeros(count, np.int32)
        for index, guesses in drafts.items():
            lengths[index] = guesses
        return lengths
