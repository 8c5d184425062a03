"""A search's sequences inside the engine: rows are gathered until every branch has one, then the branches change.

What branches there are is the method's (search.py); how they share pages is the scheduler's (`fork`). Knows nothing of
when a step is made.
"""

from collections.abc import Sequence

from app.engine.generation import Deliver, Generation
from app.engine.model_runner import CandidateSampler, ModelRunner, StateHistory, StateReader
from app.engine.pages.page_names import PageChain
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceGroup, SequenceState
from app.engine.searches.methods import Advance, Row, SearchMethod, make_method
from app.messages.requests import ContrastiveParams, GenerateRequest

MOST_ROW_TOKENS = 1024
"""Of a native row (kernels/token_scores.h)."""


class Search:
    """One request's branches. The engine's thread only, once it is submitted."""

    __slots__ = ("_history", "_joined", "_method", "_rows", "cached_tokens", "group", "members", "root")

    def __init__(self, root: Generation, method: SearchMethod, history: StateHistory | None) -> None:
        """`root`: the request, whose prompt is the first sequence."""
        self.root = root
        self.group = SequenceGroup(method.width, [root.sequence])
        self.members = [root]
        self.cached_tokens = 0  # of the prompt, not told yet
        self._method = method
        self._history = history
        self._rows: dict[SequenceState, Row] = {}
        self._joined: list[Generation] | None = None  # the branches, while what they have in common is computed
        root.search = self
        root.sequence.group = self.group

    @staticmethod
    def of(
        request: GenerateRequest, runner: ModelRunner, deliver: Deliver, key: object, salt: bytes | None
    ) -> Generation:
        """A new request's first sequence. Raises ValueError for an option that is out of range."""
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
        root.states = None if history is None else history.writer()
        Search(root, method, history)
        return root

    def arrived(
        self, member: Generation, scheduler: Scheduler, generations: dict[SequenceState, Generation]
    ) -> Advance | None:
        """A member's sequence is computed to its end. Returns a step's outcome; None while others are to come."""
        if not self.group.branched:
            self.cached_tokens += member.sequence.cached_tokens
            member.sequence.cached_tokens = 0
            if self._joined is not None:
                self._part(member, self._joined, scheduler, generations)
                return None
        sampler = _candidate_sampler(member)
        _, token_ids, logprobs = sampler.take_scores()
        similarity = -1.0 if member.states is None or not self.group.branched else member.states.similarity
        self._rows[member.sequence] = Row(token_ids[0].tolist(), logprobs[0].tolist(), similarity)
        if len(self._rows) < len(self.members):
            return None
        advance = self._method.advance([self._rows[each.sequence] for each in self.members])
        self._rows.clear()
        if advance.chosen is not None:
            states = self.members[advance.chosen].states
            assert states is not None
            states.choose()
        if advance.finish_reason is None:
            self._branch(advance.children, scheduler, generations)
        return advance

    def remove(self, scheduler: Scheduler, generations: dict[SequenceState, Generation]) -> None:
        """Takes all sequences out."""
        scheduler.remove(self.group.members[0])
        for member in self.members:
            del generations[member.sequence]

    def join(self, generations: dict[SequenceState, Generation]) -> None:
        """The group was preempted: its sequence is now what the branches have in common, to be computed again."""
        branches = self.members
        for branch in branches:
            del generations[branch.sequence]
        most = len(branches[0].tokens) - 1  # of a branch alone the last token is not in it: it gives the row
        columns = zip(*(branch.tokens for branch in branches), strict=True)
        common = next((index for index, column in enumerate(columns) if len(set(column)) > 1), most)
        [sequence] = self.group.members
        tokens = branches[0].tokens[:common]
        sequence.length = common
        sequence.chain = _forked(branches[0].sequence.chain, tokens)
        request = self.root.request
        self.members = [Generation(request, None, self.root.deliver, self.root.key, tokens, sequence, search=self)]
        generations[sequence] = self.members[0]
        self._joined = branches
        self._rows.clear()  # computed again, they are the same

    def _part(
        self,
        joined: Generation,
        branches: list[Generation],
        scheduler: Scheduler,
        generations: dict[SequenceState, Generation],
    ) -> None:
        """What the branches have in common is there: each computes the rest of its own."""
        del generations[joined.sequence]
        sequences = scheduler.fork(self.group, [(joined.sequence, len(branch.tokens)) for branch in branches])
        for branch, sequence in zip(branches, sequences, strict=True):
            sequence.chain = _forked(joined.sequence.chain, branch.tokens)
            branch.sequence = sequence
            generations[sequence] = branch
        self.members, self._joined = branches, None

    def _branch(
        self,
        children: Sequence[tuple[int, int]],
        scheduler: Scheduler,
        generations: dict[SequenceState, Generation],
    ) -> None:
        """Makes the members (member, token) of the present ones."""
        for member in self.members:
            del generations[member.sequence]
        parents = [self.members[index] for index, _ in children]
        sequences = scheduler.fork(self.group, [(parent.sequence, len(parent.tokens) + 1) for parent in parents])
        members = []
        for parent, (_, token), sequence in zip(parents, children, sequences, strict=True):
            tokens = [*parent.tokens, token]
            sequence.chain = _forked(parent.sequence.chain, tokens)
            child = Generation(
                parent.request,
                _candidate_sampler(parent).after(token),
                parent.deliver,
                parent.key,
                tokens,
                sequence,
                search=self,
                states=self._candidate_reader(),
            )
            generations[sequence] = child
            members.append(child)
        self.members = members

    def _candidate_reader(self) -> StateReader | None:
        return None if self._history is None else self._history.candidate()


def _candidate_sampler(member: Generation) -> CandidateSampler:
    sampler = member.sampler
    assert sampler is not None
    return sampler  # type: ignore[return-value]  # a search's members have no other


def _forked(chain: PageChain | None, tokens: list[int]) -> PageChain | None:
    return None if chain is None else chain.fork(tokens)
