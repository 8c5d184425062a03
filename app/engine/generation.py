"""One sequence that the engine generates for: its request, sampler, output so far, and where deltas go."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.engine.guesses.drafter import NgramDrafter
from app.engine.model_runner import PromptReader, StateReader, TokenConstraint, TokenSampler
from app.engine.pages.page_names import PageChain
from app.engine.scheduling.limits import PageWindow
from app.engine.scheduling.sequence import SequenceState
from app.messages.failures import EngineError
from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest

if TYPE_CHECKING:
    from app.engine.searches.branches import Search


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
