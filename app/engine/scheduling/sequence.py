"""The scheduler's view of a sequence, and one step's work.

Lengths, counts and page numbers only; scheduler.py plans with them.
"""

from dataclasses import dataclass, field

from app.engine.pages.page_names import PageChain
from app.engine.scheduling.limits import PageWindow
from app.messages.memory import MemoryGrant


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one search, adjacent in the running list.

    At first the group is one sequence, for the tokens that all branches share; then it has the branches.
    """

    width: int
    """The most branches; the group occupies this many slots while it runs."""
    members: list["SequenceState"] = field(default_factory=list)
    branched: bool = False
    """Whether the members are branches."""
    spare_slots: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SequenceState:
    """The scheduler's view of one sequence."""

    prompt_tokens: int
    max_new_tokens: int
    chain: PageChain | None = None
    """The digests of its pages; None: pages are not shared."""
    window: PageWindow | None = None
    """None: prompt and output fit the context."""
    group: SequenceGroup | None = None
    """The search it belongs to; None: it is a request of its own. Members of a group share pages."""
    caller: bytes = b""
    """Fair shares are counted by caller (`fair_queue`); the branches of a search have their root's."""
    is_batch: bool = False
    """Whether nobody waits for it (`Priority.BATCH`); the branches of a search have their root's."""
    grant: MemoryGrant | None = None
    """Permission for a user's saved pages; None: none may be loaded or saved."""
    length: int = field(init=False)
    """Known tokens: the prompt and the output so far, without those that have left the window."""
    end_length: int = field(init=False)
    """The `length` at which the output is complete."""
    dropped: int = 0
    """Tokens that have left the window. A token's position is its index plus this."""
    sinks: list[int] = field(default_factory=list)
    """The window's first pages as they were computed, once `pages` has copies of them rotated to later positions."""
    drafts: int = 0
    """Draft tokens to compute after the next token; only if all running sequences decode."""
    computed: int = 0
    """How many tokens, from the first on, have keys and values in the pages."""
    pages: list[int] = field(default_factory=list)
    """Pages of all page groups, ordered as in pages/page_groups.py; NONE where no later token sees the page."""
    states: dict[int, int] = field(default_factory=dict)
    """Pages of recurrent states, by page index of the text; empty if the model has none."""
    slot: int = -1
    """Row of the page table while it runs; -1 while it waits and when it has ended."""
    planned: int = 0
    """Tokens to compute in the step being made."""
    kept_pages: int = 0
    """How many pages of tokens, from the first on, were offered to the prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had when the sequence first ran."""
    loading: bool = False
    """Whether a `PageLoader` loads its next pages; it is not scheduled meanwhile."""
    asked_loader: bool = False
    """Whether it has started a load since it runs; it gets no second one."""
    restarted: bool = False
    """Whether it was preempted: cached pages that it finds afterwards may be its own."""

    def __post_init__(self) -> None:
        self.length = self.prompt_tokens
        self.end_length = self.prompt_tokens + self.max_new_tokens

    @property
    def width(self) -> int:
        """Slots that it needs to begin: those of its whole search."""
        return 1 if self.group is None else self.group.width

    @property
    def in_prompt(self) -> bool:
        """Whether the next token to compute is one of the prompt's."""
        return self.computed + self.dropped < self.prompt_tokens

    @property
    def left(self) -> int:
        """Number of tokens to compute next. One step computes tokens of the prompt or of the output, never of both."""
        end = min(self.length, self.prompt_tokens - self.dropped) if self.in_prompt else self.length
        return end - self.computed

    @property
    def generated(self) -> int:
        """Number of output tokens so far."""
        return self.max_new_tokens - (self.end_length - self.length)


@dataclass(slots=True)
class Step:
    """One step's work, with parallel lists over its sequences.

    Sequences that compute tokens of their output come first, then those in their prompt; each kind oldest first.
    """

    sequences: list[SequenceState] = field(default_factory=list)
    query_lengths: list[int] = field(default_factory=list)
    """Tokens to compute for each: those from `computed` on, and draft tokens beyond `length`."""
    prompts: int = 0
    """How many of the sequences, the last ones, compute prompt tokens."""
    samples: list[bool] = field(default_factory=list)
    """For each sequence, whether the step computes its last known token, so that the next can be sampled."""
    copied_pages: list[tuple[int, int]] = field(default_factory=list)
    """(source, target): pages to copy before the step, because a branch writes to a shared page."""
    copied_state_pages: list[tuple[int, int]] = field(default_factory=list)
    """State pages to copy in the same way."""
    preempted_groups: list[SequenceGroup] = field(default_factory=list)
    """Groups whose branches were preempted. Each has one member now, for the tokens that the branches share; its length
    must be set before it runs."""
    begun: list[SequenceState] = field(default_factory=list)
    """Sequences that start to run with this step, for the first time or after a preemption."""
    new_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, entry, page): what to write to the page tables before the step; entries as in `SequenceState.pages`."""
    new_state_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, page of the text, state page): what to write to the states' page table before the step."""
    dropped: list[tuple[SequenceState, int, int]] = field(default_factory=list)
    """(sequence, begin, end): tokens that have left its context window."""
    turned_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(source, target, positions): pages to copy before the step, with keys rotated by `positions`."""
