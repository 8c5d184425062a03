"""A sequence as the scheduler sees it, and one step's work.

Lengths, counts and page numbers; who plans with them is in scheduler.py.
"""

from dataclasses import dataclass, field

from app.engine.pages.page_names import PageChain
from app.engine.scheduling.limits import PageWindow


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one search, neighbours among the running: one for what they have in common, then branches."""

    width: int
    """The most branches: so many slots it has while it runs."""
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
    """Digests of its pages; None: they are not shared."""
    window: PageWindow | None = None
    """None: prompt and output fit the context."""
    group: SequenceGroup | None = None
    """None: it is alone. All members share their pages; the last one to hold a page may write to it."""
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
    def in_prompt(self) -> bool:
        """Whether the next token to compute is one of the prompt's."""
        return self.computed + self.dropped < self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens to compute, of the prompt's only while there are such: one step has either those or the output's."""
        end = min(self.length, self.prompt_tokens - self.dropped) if self.in_prompt else self.length
        return end - self.computed

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return self.max_new_tokens - (self.end_length - self.length)


@dataclass(slots=True)
class Step:
    """One step's work: parallel lists over its sequences. First those that compute output, each kind oldest first."""

    sequences: list[SequenceState] = field(default_factory=list)
    query_lengths: list[int] = field(default_factory=list)
    """Tokens to compute: those from `computed` on, and guesses beyond `length`."""
    prompts: int = 0
    """How many sequences, the last ones, compute tokens of their prompt."""
    samples: list[bool] = field(default_factory=list)
    """Whether they reach the sequence's length, so that its next token can be sampled."""
    copied_pages: list[tuple[int, int]] = field(default_factory=list)
    """(source, target): pages to copy before the step, for a branch that goes on in a page that others hold too."""
    preempted_groups: list[SequenceGroup] = field(default_factory=list)
    """Groups whose branches were preempted: each has one member now, for what the branches have in common. Whoever
    knows the tokens sets its length before it runs."""
    new_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, index, page): page table entries to write before the step."""
    dropped: list[tuple[SequenceState, int, int]] = field(default_factory=list)
    """(sequence, begin, end): tokens that have left its window."""
    turned_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """(source, target, positions): pages to copy before the step, their keys turned by so many positions."""
