"""A sequence as the scheduler sees it, and one step's work.

Lengths, counts and page numbers only; scheduler.py plans with them.
"""

from dataclasses import dataclass, field

from app.engine.pages.page_names import PageChain
from app.engine.scheduling.limits import PageWindow
from app.messages.memory import MemoryGrant


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one search, next to each other in the running list.

    First one sequence, for the tokens that all branches have in common, then the branches.
    """

    width: int
    """The most branches; the group has as many slots while it runs."""
    members: list["SequenceState"] = field(default_factory=list)
    branched: bool = False
    """Whether the members are branches."""
    spare_slots: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SequenceState:
    """One sequence as the scheduler sees it."""

    prompt_tokens: int
    max_new_tokens: int
    chain: PageChain | None = None
    """The digests of its pages; None: its pages are not shared."""
    window: PageWindow | None = None
    """None: prompt and output fit the context."""
    group: SequenceGroup | None = None
    """The search it belongs to; None: it is a request of its own. Members of a group share pages."""
    caller: bytes = b""
    """Among whom time is shared (`fair_queue`); the branches of a search have their root's."""
    grant: MemoryGrant | None = None
    """Whose saved pages it may use, and where; None: it knows of none."""
    length: int = field(init=False)
    """Known tokens: the prompt and the output so far, without those that have left the window."""
    end_length: int = field(init=False)
    """The `length` at which the output is complete."""
    dropped: int = 0
    """Tokens that have left the window. A token's position is its index plus this."""
    sinks: list[int] = field(default_factory=list)
    """The window's first pages as they were computed, once `pages` has copies of them rotated to later positions."""
    drafts: int = 0
    """Guesses to compute together with the next token; only if all running sequences decode."""
    computed: int = 0
    """How many tokens, from the first on, have keys and values in the pages."""
    pages: list[int] = field(default_factory=list)
    """Of all page groups, as pages/page_groups.py says. Entries of pages that no later token sees are NONE."""
    states: dict[int, int] = field(default_factory=dict)
    """Its pages of recurrent states, by page of its text; empty if the model has none."""
    slot: int = -1
    """Row of the page table while it runs; -1 while it waits and when it has ended."""
    planned: int = 0
    """Tokens to compute in the step being made."""
    kept_pages: int = 0
    """How many pages of tokens, from the first on, were offered to the prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had when the sequence first ran."""
    loading: bool = False
    """Whether a `PageLoader` brings its next pages: it plans nothing meanwhile."""
    asked_loader: bool = False
    """Whether a load of its own has begun since it runs: there is no second one."""
    restarted: bool = False
    """Whether it gave pages back once: what it finds in the cache from then on may be its own."""

    def __post_init__(self) -> None:
        self.length = self.prompt_tokens
        self.end_length = self.prompt_tokens + self.max_new_tokens

    @property
    def width(self) -> int:
        """The slots that it needs to begin: those of its whole search."""
        return 1 if self.group is None else self.group.width

    @property
    def in_prompt(self) -> bool:
        """Whether the next token to compute is one of the prompt's."""
        return self.computed + self.dropped < self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens to compute next. A step computes tokens of the prompt or of the output, never of both."""
        end = min(self.length, self.prompt_tokens - self.dropped) if self.in_prompt else self.length
        return end - self.computed

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return self.max_new_tokens - (self.end_length - self.length)


@dataclass(slots=True)
class Step:
    """One step's work, with parallel lists over its sequences.

    Sequences that compute tokens of their output come first, then those in their prompt; each kind oldest first.
    """

    sequences: list[SequenceState] = field(default_factory=list)
    query_lengths: list[int] = field(default_factory=list)
    """Tokens to compute for each: those from `computed` on, and guesses beyond `length`."""
    prompts: int = 0
    """How many of the sequences, the last ones, compute tokens of their prompt."""
    samples: list[bool] = field(default_factory=list)
    """For each: whether all of its tokens are computed after the step, so that the next one can be sampled."""
    copied_pages: list[tuple[int, int]] = field(default_factory=list)
    """(source, target): pages to copy before the step, for branches that write to a page that others hold too."""
    copied_state_pages: list[tuple[int, int]] = field(default_factory=list)
    """The same of state pages."""
    preempted_groups: list[SequenceGroup] = field(default_factory=list)
    """Groups whose branches were preempted: each has one member now, for what the branches have in common. Its
    length must be set before it runs."""
    begun: list[SequenceState] = field(default_factory=list)
    """Sequences that have waited and run from this step on, for the first time or after a preemption."""
    new_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, entry, page): what to write to the page tables before the step; entries as in `SequenceState.pages`."""
    new_state_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, page of the text, state page): what to write to the states' page table before the step."""
    dropped: list[tuple[SequenceState, int, int]] = field(default_factory=list)
    """(sequence, begin, end): tokens that have left its window."""
    turned_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(source, target, positions): pages to copy before the step, their keys rotated by so many positions."""
