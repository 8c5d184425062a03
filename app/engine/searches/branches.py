"""A search inside the engine: one request with several branches, each a sequence.

Each step the search collects a row (the likeliest next tokens) from every branch. When all rows are there, the search
method (`methods.py`) decides how the branches continue. The search tells the engine which sequences leave and which
generations enter; the scheduler's `fork` makes branches share their pages. Knows nothing of when a step is made, nor of
the engine's own state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.generation import Deliver, Generation
from app.engine.model_runner import CandidateSampler, ModelRunner, StateHistory, StateReader
from app.engine.pages.page_names import PageChain
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceGroup, SequenceState
from app.engine.searches.methods import Advance, Row, SearchMethod, make_method
from app.messages.requests import ContrastiveParams, GenerateRequest

MOST_ROW_TOKENS = 1024
"""The longest row that the native sampler makes (`_native.Sampler`, argument `candidates`)."""


@dataclass(frozen=True, slots=True)
class BranchChange:
    """Changes of a search; the engine replaces its sequences accordingly, first those that leave."""

    leaves: Sequence[SequenceState] = ()
    """Sequences that no longer belong to the search. One may leave with one generation and enter with another."""
    enters: Sequence[Generation] = ()
    """Generations that the engine runs from now on, each with a sequence of its own."""
    advance: Advance | None = None
    """The method's decision; None while rows of other branches are missing."""


_NO_CHANGE = BranchChange()


class Search:
    """One request's branches. Used by the engine's thread only, once it is submitted."""

    __slots__ = ("_history", "_members", "_method", "_preempted", "_rows", "cached_tokens", "group", "root")

    def __init__(self, root: Generation, method: SearchMethod, history: StateHistory | None) -> None:
        """`root`: the request's first generation, which stands for the whole request; its sequence is the prompt.

        history: the hidden states of the text so far, for a method that compares them.
        """
        self.root = root
        self.group = SequenceGroup(method.width, [root.sequence])
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache had and no delta has reported yet."""
        self._members = [root]
        self._method = method
        self._history = history
        self._rows: dict[SequenceState, Row] = {}
        # After a preemption: the branches to continue once their common tokens are computed again.
        self._preempted: list[Generation] | None = None
        root.sequence.group = self.group

    @staticmethod
    def of(
        request: GenerateRequest, runner: ModelRunner, deliver: Deliver, key: object, salt: bytes | None
    ) -> "Search":
        """Makes the search of a new request. Raises ValueError for an option that is out of range."""
        assert request.search is not None
        method = make_method(request.search, request.max_new_tokens, request.stop_token_ids)
        row_tokens = min(method.row_tokens, runner.vocab_size)
        if row_tokens > MOST_ROW_TOKENS:
            raise ValueError(f"stop_token_ids: {len(request.stop_token_ids)} are too many for so many beams")
        sampler = runner.make_candidate_sampler(
            request.prompt_token_ids, request.sampling, row_tokens, penalizes_logprobs=method.penalizes_logprobs
        )
        root = Generation.of(request, sampler, deliver, key, page_tokens=runner.page_tokens, salt=salt)
        history = runner.make_history() if isinstance(request.search, ContrastiveParams) else None
        root.state_reader = None if history is None else history.writer()
        return Search(root, method, history)

    @property
    def sequences(self) -> list[SequenceState]:
        """The sequences whose generations the engine runs for this search."""
        return [member.sequence for member in self._members]

    def arrived(self, member: Generation, scheduler: Scheduler) -> BranchChange:
        """Handles a member whose sequence is completely computed. Returns the changes, which may be none yet."""
        if not self.group.branched:
            self.cached_tokens += member.sequence.cached_tokens
            member.sequence.cached_tokens = 0
            if self._preempted is not None:
                return self._restore(member, self._preempted, scheduler)
        sampler = _candidate_sampler(member)
        _, token_ids, logprobs = sampler.take_scores()
        reader = member.state_reader
        similarity = -1.0 if reader is None or not self.group.branched else reader.similarity
        self._rows[member.sequence] = Row(token_ids[0].tolist(), logprobs[0].tolist(), similarity)
        if len(self._rows) < len(self._members):
            return _NO_CHANGE
        advance = self._method.advance([self._rows[each.sequence] for each in self._members])
        self._rows.clear()
        if advance.chosen is not None:
            chosen = self._members[advance.chosen].state_reader
            assert chosen is not None
            chosen.choose()
        if advance.finish_reason is not None:
            return BranchChange(advance=advance)
        return self._branch(advance, scheduler)

    def preempted(self) -> BranchChange:
        """Handles the group's preemption: one sequence will recompute the tokens that all branches begin with."""
        branches = self._members
        leaves = self.sequences
        # A single branch leaves its last token out: the step that computes it gives the branch's row.
        most = len(branches[0].tokens) - 1
        columns = zip(*(branch.tokens for branch in branches), strict=True)
        common = next((index for index, column in enumerate(columns) if len(set(column)) > 1), most)
        [sequence] = self.group.members
        tokens = branches[0].tokens[:common]
        sequence.length = common
        sequence.chain = _forked(branches[0].sequence.chain, tokens)
        root = self.root
        self._members = [Generation(root.request, None, root.deliver, root.key, tokens, sequence)]
        self._preempted = branches
        self._rows.clear()  # the branches will compute the same rows again
        return BranchChange(leaves, self._members)

    def _restore(self, common: Generation, branches: list[Generation], scheduler: Scheduler) -> BranchChange:
        """Resumes the branches after a preemption, once their common tokens are computed again."""
        children = [(common.sequence, len(branch.tokens)) for branch in branches]
        sequences = scheduler.fork(self.group, children)
        for branch, sequence in zip(branches, sequences, strict=True):
            sequence.chain = _forked(common.sequence.chain, branch.tokens)
            branch.sequence = sequence
        self._members, self._preempted = branches, None
        return BranchChange([common.sequence], branches)

    def _branch(self, advance: Advance, scheduler: Scheduler) -> BranchChange:
        """Replaces the members by the advance's children."""
        leaves = self.sequences
        parents = [self._members[index] for index, _ in advance.children]
        sequences = scheduler.fork(self.group, [(parent.sequence, len(parent.tokens) + 1) for parent in parents])
        members = []
        for parent, (_, token), sequence in zip(parents, advance.children, sequences, strict=True):
            tokens = [*parent.tokens, token]
            sequence.chain = _forked(parent.sequence.chain, tokens)
            sampler = _candidate_sampler(parent).after(token)
            members.append(
                Generation(
                    parent.request,
                    sampler,
                    parent.deliver,
                    parent.key,
                    tokens,
                    sequence,
                    state_reader=self._candidate_reader(),
                )
            )
        self._members = members
        return BranchChange(leaves, members, advance)

    def _candidate_reader(self) -> StateReader | None:
        return None if self._history is None else self._history.candidate()


def _candidate_sampler(member: Generation) -> CandidateSampler:
    sampler = member.sampler
    assert sampler is not None
    return sampler  # type: ignore[return-value]  # a search's members have no other


def _forked(chain: PageChain | None, tokens: list[int]) -> PageChain | None:
    return None if chain is None else chain.fork(tokens)
