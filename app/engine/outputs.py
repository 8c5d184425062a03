"""The outputs in the making: what becomes of each sampled token, and what ends an output.

Used by the engine's thread only. Knows neither when a step is made nor how it is computed.
"""

import logging
import time

from app.engine.generation import Generation
from app.engine.inbox import Inbox
from app.engine.memory.engine_memory import EngineMemory
from app.engine.outbox import Outbox
from app.engine.progress import ProgressReports
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceGroup, SequenceState, Step
from app.engine.searches.branches import BranchChange, Search
from app.engine.statistics import EngineCounters
from app.messages.failures import ConstraintError, StepFailedError
from app.messages.outputs import TokenDelta

logger = logging.getLogger(__name__)


class Outputs:
    """The generations of all requests in the engine, queued ones too, by their sequences."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        inbox: Inbox,
        outbox: Outbox,
        progress: ProgressReports,
        counters: EngineCounters,
        memory: EngineMemory | None,
    ) -> None:
        """inbox: is told which requests have ended. outbox: gets their events. memory: None: no pages are saved."""
        self.generations: dict[SequenceState, Generation] = {}
        self._searches: dict[SequenceGroup, Search] = {}
        self._scheduler = scheduler
        self._inbox = inbox
        self._outbox = outbox
        self._progress = progress
        self._counters = counters
        self._memory = memory

    def add(self, generation: Generation, search: Search | None) -> None:
        """Queues a new request."""
        self.generations[generation.sequence] = generation
        if search is not None:
            self._searches[search.group] = search
        self._scheduler.add(generation.sequence)
        if generation.request.reports_progress:
            self._progress.watch(generation)
        if self._memory is not None:
            self._memory.submitted(generation.sequence)

    def scheduled(self, step: Step) -> None:
        """Follows a step that is planned: requests that begin, searches that were preempted, shifted windows."""
        for sequence in step.begun:
            self._count_begun(self.generations[sequence])
        for group in step.preempted_groups:
            self._exchange(self._searches[group].preempted())
        for sequence, begin, end in step.dropped:
            self.generations[sequence].drop(begin, end)

    def append(self, sequence: SequenceState, token: int, *, is_last: bool = True) -> None:
        """Handles one sampled token: extends the output, or ends it.

        is_last: whether it is the step's last one of the sequence, the only one that a constraint's error can concern.
        """
        generation = self.generations[sequence]
        if sequence.group is not None:
            self._advance(self._searches[sequence.group], generation)
            return
        if generation.aborted:  # the abort is in the inbox
            return
        request = generation.request
        if is_last and generation.constraint is not None and generation.constraint.error is not None:
            self.remove(generation)
            self._outbox.add(
                generation,
                ConstraintError("The schema became too complex for this output", generation.constraint.error),
            )
            return
        cached = sequence.cached_tokens
        if cached:  # report the cached tokens once
            self._counters.cached_tokens += cached
            sequence.cached_tokens = 0
        prompt = generation.take_prompt_result() if generation.prompt_reader is not None else None
        if not request.max_new_tokens:
            delta = TokenDelta((), "length", cached, None, prompt)
        elif token in request.stop_token_ids:
            delta = TokenDelta((), "stop", cached, None, prompt)
        else:
            generation.tokens.append(token)
            sequence.length += 1
            written = generation.end_thought(token) if generation.thought is not None else ()
            self._counters.generated_tokens += 1 + len(written)
            full = sequence.length == sequence.end_length
            scores = None
            if request.sampling.logprobs is not None:
                scores = generation.take_scores()
                scores = scores.with_written(written) if written else scores
            if not (written or full or cached or scores or prompt):
                self._outbox.add(generation, token)
                return
            delta = TokenDelta((token, *written), "length" if full else None, cached, scores, prompt)
        if delta.finish_reason is not None:
            self.remove(generation)
        self._outbox.add(generation, delta)

    def _advance(self, search: Search, member: Generation) -> None:
        """Processes one branch of a search whose tokens are all computed."""
        if search.root.aborted:
            return
        change = search.arrived(member, self._scheduler)
        self._exchange(change)
        advance = change.advance
        if advance is None:
            return
        counters = self._counters
        cached, search.cached_tokens = search.cached_tokens, 0
        counters.generated_tokens += len(advance.token_ids) + sum(len(answer.token_ids) for answer in advance.more)
        if advance.finish_reason is not None:
            self.remove(search.root)
        elif not advance.token_ids:
            search.cached_tokens = cached  # for the first delta
            return
        counters.cached_tokens += cached
        self._outbox.add(
            search.root,
            TokenDelta(
                advance.token_ids,
                advance.finish_reason,
                cached,
                more=advance.more,
                end_token_id=advance.end_token_id,
            ),
        )

    def _exchange(self, change: BranchChange) -> None:
        for sequence in change.leaves:
            del self.generations[sequence]
        for generation in change.enters:
            self.generations[generation.sequence] = generation

    def fail(self, step: Step, error: Exception) -> None:
        """Ends the requests of a failed step.

        Other requests are unaffected: pages are shared only after their step succeeded.
        """
        names = []
        for sequence in step.sequences:
            if sequence not in self.generations:  # another branch has ended its search
                continue
            group = sequence.group
            generation = self.generations[sequence] if group is None else self._searches[group].root
            names.append(generation.request.request_id)
            self.remove(generation)
            if not generation.aborted:
                self._outbox.add(generation, StepFailedError(f"the engine could not compute this request: {error}"))
        logger.error("an engine step of the requests %s has failed", ", ".join(names), exc_info=error)

    def remove(self, generation: Generation) -> None:
        """Removes a request with all branches of its search, and frees its pages and slots."""
        group = generation.sequence.group
        if group is None:
            names = [] if self._memory is None else self._memory.names_of(generation.sequence)
            self._scheduler.remove(generation.sequence)
            del self.generations[generation.sequence]
            if self._memory is not None:
                self._memory.ended(generation.sequence, names)
        else:
            search = self._searches.pop(group)
            self._scheduler.remove(group.members[0])
            self._exchange(BranchChange(leaves=search.sequences))
            generation = search.root
        self._progress.forget(generation)
        generation.ended = True
        self._inbox.forget(generation)

    def remove_all(self) -> None:
        """Removes the requests that are left when the engine ends."""
        while self.generations:
            self.remove(next(iter(self.generations.values())))

    def _count_begun(self, generation: Generation) -> None:
        if generation.submitted_s is not None:
            if not generation.sequence.is_batch:
                self._counters.begun += 1
                self._counters.queued_s += time.monotonic() - generation.submitted_s
            generation.submitted_s = None
