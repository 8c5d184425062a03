"""The engine: one thread that turns requests into tokens, a step at a time.

Callers submit requests and get events back through a callback. The thread takes requests from its inbox, asks the
scheduler for a step, fills the step's arrays, calls the model once, and takes the tokens. While the model computes, the
interpreter lock is free, and another thread delivers the tokens of the step before (outbox.py).

A step of batches alone is interrupted when a request comes that somebody waits for, and planned again later.

Knows nothing of text, HTTP, asyncio or Ray, nor of how a model computes a step.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np

from app.engine.batch import BatchArrays
from app.engine.expert_reads import ExpertReads
from app.engine.generation import Deliver, Generation
from app.engine.intake import Intake
from app.engine.memory.engine_memory import EngineMemory, MemoryOptions, asked
from app.engine.memory.page_store import PageStore
from app.engine.model_runner import ModelRunner, TokenConstraint
from app.engine.outbox import Outbox
from app.engine.pages.page_names import CACHE_SECRET_BYTES
from app.engine.pages.page_pool import OnPageEvicted
from app.engine.progress import ProgressReports
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.pace import PromptPace
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceGroup, SequenceState, Step
from app.engine.searches.branches import BranchChange, Search
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.speculation import Speculation
from app.engine.statistics import EngineStatistics, TokenRate
from app.messages.defaults import PROMPT_CHUNK_TOKENS
from app.messages.failures import (
    ConstraintError,
    EngineFailedError,
    EngineStoppedError,
    InvalidRequestError,
    StepFailedError,
)
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Steps that fail one after another, after which the engine stops."""


class Engine:
    """Continuous batching over one model. Thread-safe; the model is used by the engine's own thread only."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        prompt_chunk_tokens: int = PROMPT_CHUNK_TOKENS,
        expected_output_tokens: int = 256,
        most_of_caller: int | None = None,
        prefix_cache: bool = True,
        cache_secret: bytes | None = None,
        on_page_evicted: OnPageEvicted | None = None,
        guess_tokens: int = 0,
        drafts: DraftSource | None = None,
        prompt_pause_s: float | None = None,
        page_store: PageStore | None = None,
        memory: MemoryOptions | None = None,
        experts: ExpertReads | None = None,
        turns: AbstractContextManager[None] | None = None,
    ) -> None:
        """Takes ownership of `runner`. Raises ValueError for limits that don't fit. Call `start` to begin.

        prompt_chunk_tokens: the most prompt tokens of a step in which other requests decode.
        expected_output_tokens: how long admission expects outputs to be, until some have ended.
        most_of_caller: how many of the runner's sequences one caller's requests may occupy; None: all.
        prefix_cache: whether pages of prompts and outputs are kept for later requests of the same tenant.
        cache_secret: at least 32 random bytes that all names of cached pages depend on. Two engines with the same
            secret give the same tokens of the same tenant the same names; without it no name can be computed. None:
            drawn at random, so that no name means anything beyond this engine.
        on_page_evicted: called with each cached page before it is used for something else; see OnPageEvicted.
        guess_tokens: the most tokens to look up per output and step (speculative/speculation.py); 0: none.
        drafts: a model that drafts too, which this engine owns; None: there is none.
        prompt_pause_s: how long, about, a step's prompt tokens may delay others' next tokens, in seconds
            (scheduling/pace.py); None: only prompt_chunk_tokens limits them.
        page_store: where pages of requests with a grant are kept beyond this engine; others close it. None: nowhere.
        memory: when pages are saved and loaded.
        experts: the model's, on which the times of steps depend; None: it has none.
        turns: each step is computed inside it, beside engines on the same cores; None: there are none.
        """
        self._runner = runner
        self._limits = SchedulerLimits(
            step_tokens=runner.max_step_tokens,
            max_sequences=runner.max_sequences,
            max_context_tokens=runner.max_context_tokens,
            page_tokens=runner.page_tokens,
            page_count=runner.kv_pages,
            group_windows=tuple(runner.group_windows),
            state_pages=runner.state_pages,
        )
        self._on_page_evicted = on_page_evicted
        self._scheduler = Scheduler(
            self._limits,
            expected_output_tokens=expected_output_tokens,
            most_of_caller=most_of_caller,
            on_page_evicted=self._page_evicted,
        )
        self._arrays = BatchArrays(runner.max_step_tokens, runner.max_sequences)
        self._page_tables = runner.page_tables
        if cache_secret is None:
            cache_secret = os.urandom(CACHE_SECRET_BYTES)
        self._intake = Intake(
            runner,
            self._limits,
            cache_secret=cache_secret if prefix_cache else None,
            fingerprint=None if page_store is None else page_store.fingerprint,
            guesses=guess_tokens > 0,
            drafts=guess_tokens > 0 or drafts is not None,
        )
        # Engine thread only.
        self._generations: dict[SequenceState, Generation] = {}
        self._searches: dict[SequenceGroup, Search] = {}
        self._speculation = Speculation(guess_tokens, experts, drafts) if guess_tokens or drafts is not None else None
        self._pace = PromptPace(prompt_chunk_tokens, prompt_pause_s, experts)
        self._memory: EngineMemory | None = None
        if page_store is not None:
            if self._limits.groups.windowed:
                raise ValueError("page_store: pages of a model with page groups can't be saved")
            if self._limits.state_pages:
                raise ValueError(
                    "page_store: a model with recurrent states goes on only where its states are, and they"
                    " can't be saved"
                )
            self._memory = EngineMemory(
                self._scheduler,
                runner,
                page_store,
                memory or MemoryOptions(),
                post=self._post,
                seconds_per_token=lambda: self._pace.seconds_per_token,
                computing=lambda: bool(self._generations),
            )
        self._turns = nullcontext() if turns is None else turns
        self._is_stuck = False  # all sequences wait for pages that are loaded or saved
        self._outbox = Outbox(self._receiver_failed)
        self._progress = ProgressReports(self._scheduler, self._outbox)
        self._failures_in_a_row = 0
        self._interruptions = 0
        self._steps = self._computed_tokens = self._cached_tokens = self._generated_tokens = 0
        self._begun, self._queued_s = 0, 0.0
        self._rate = TokenRate()
        # Shared, guarded by the condition's lock.
        self._wake = threading.Condition()
        self._inbox: deque[tuple[Literal["submit", "abort"], Generation, Search | None]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._live: dict[str, Generation] = {}
        self._interrupt = np.zeros(1, np.int32)
        """Ends a step of batches early: a request came that is to be computed before them."""
        self._stopping = False
        self._stopped_reason: str | None = None
        self._failed = False  # whether it has stopped by itself
        self._thread = threading.Thread(target=self._main, name="redoubt-engine", daemon=True)
        self._statistics = self._count()

    # --- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._outbox.start()
        self._thread.start()

    def submit(
        self, request: GenerateRequest, deliver: Deliver, key: object, constraint: TokenConstraint | None = None
    ) -> None:
        """Queues a request. `deliver` gets its events with `key`; the last one has a finish reason or is an error.

        constraint: what the output may be; the caller must not use it any more.

        The queue has no bound of its own: callers limit their requests. Raises RequestTooLongError,
        InvalidRequestError, or EngineStoppedError.
        """
        generation, search = self._intake.make(request, deliver, key, constraint)
        with self._wake:
            if self._stopped_reason is not None:
                raise EngineStoppedError(self._stopped_reason)
            if request.request_id in self._live:
                raise InvalidRequestError(f"request id {request.request_id!r} is in use")
            self._live[request.request_id] = generation
            self._inbox.append(("submit", generation, search))
            if not generation.sequence.is_batch:
                self._interrupt[0] = 1
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        """Ends a request, queued or running, without a further event; does nothing if it is unknown or has ended.

        Takes effect before the next step; the step that is running is not interrupted.
        """
        with self._wake:
            generation = self._live.pop(request_id, None)
            if generation is not None:
                generation.aborted = True
                self._inbox.append(("abort", generation, None))
                self._wake.notify()

    @property
    def memory(self) -> EngineMemory | None:
        """Saves and loads KV pages; None without a page store."""
        return self._memory

    def _post(self, call: Callable[[], None]) -> bool:
        """Schedules a call on the engine's thread, before its next step. Returns False if that thread has ended."""
        with self._wake:
            if self._stopped_reason is not None:
                return False
            self._calls.append(call)
            self._wake.notify()
            return True

    def release_memory(self) -> "Future[bool]":
        """Evicts all cached pages and gives the model's memory back, until the next request needs it.

        The result is False, and nothing changes, if a request or its pages are in use. Raises EngineStoppedError in
        the future.
        """

        def release(future: "Future[bool]") -> None:
            states = self._scheduler.states
            pools = [self._scheduler.pool] if states is None else [self._scheduler.pool, states.pool]
            is_idle = not self._generations and not any(pool.used_count for pool in pools)
            if is_idle:
                for pool in pools:
                    pool.evict_all()
                self._runner.release_memory()
                if self._speculation is not None:
                    self._speculation.release_memory()
                self._statistics = self._count()
            future.set_result(is_idle)

        return asked(self._post, release)

    def statistics(self) -> EngineStatistics:
        """Returns the engine's counters as of the end of the last step."""
        return self._statistics

    @property
    def longest_tokens(self) -> int:
        """The most tokens of one request, prompt and output together, by the context and by the KV cache."""
        return self._limits.longest_tokens

    @property
    def healthy(self) -> bool:
        """Whether the engine's thread runs and accepts requests."""
        return self._thread.is_alive() and self._stopped_reason is None

    def stop(self) -> None:
        """Ends the thread after its current step; unfinished requests get EngineStoppedError. Idempotent."""
        with self._wake:
            self._refuse_requests("the engine is shutting down")
            self._wake.notify()
        if self._thread.ident is None:
            self._end_all()
        else:
            self._thread.join()

    # --- the engine's thread ----------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._drain_inbox():
                self._step()
        except Exception:
            logger.exception("the engine's thread has failed")
            with self._wake:
                self._failed = True
                self._refuse_requests("the engine has failed; see its log")
        finally:
            self._end_all()

    def _step(self) -> None:
        step = self._schedule()
        if self._progress.watched:
            self._progress.scheduled()
        tokens = self._compute(step)
        self._postprocess(step, tokens)

    def _drain_inbox(self) -> bool:
        """Processes queued requests, aborts and calls; blocks while the engine is idle.

        Returns False to end the thread.
        """
        # Without the lock: what comes meanwhile is taken before the next step. A request is in the inbox before it
        # interrupts, so one that comes after this line is seen below or interrupts the next step.
        self._interrupt[0] = 0
        goes_on = self._generations and not (self._is_stuck or self._inbox or self._calls or self._stopping)
        if not goes_on and not self._take_inbox():
            return False
        if self._memory is not None:
            self._memory.advance()
        return True

    def _take_inbox(self) -> bool:
        """Waits until there is something to do, and does what the inbox has. Returns False to end the thread."""
        if self._calls or not self._generations or self._is_stuck:  # otherwise _compute sends them, and soon
            self._outbox.flush()
        with self._wake:
            while not (self._inbox or self._calls or self._stopping or (self._generations and not self._is_stuck)):
                self._statistics = self._count()
                woken = self._wake.wait(None if self._memory is None else self._memory.wait_s())
                self._rate.restart(self._generated_tokens)
                if not woken:
                    break
            if self._stopping:
                return False
            taken, self._inbox = self._inbox, deque()
            self._interrupt[0] = 0
            calls, self._calls = self._calls, deque()
        for action, generation, search in taken:
            if action == "submit":
                self._generations[generation.sequence] = generation
                if search is not None:
                    self._searches[search.group] = search
                self._scheduler.add(generation.sequence)
                if generation.request.reports_progress:
                    self._progress.watch(generation)
                if self._memory is not None:
                    self._memory.submitted(generation.sequence)
            elif not generation.ended:
                self._forget(generation)
        for call in calls:
            call()
        return True

    def _schedule(self) -> Step:
        """Plans the next step and prepares it: page tables, page copies, shifted context windows."""
        if self._speculation is not None:
            active = self._scheduler.active
            self._speculation.draft(active, self._generations, self._limits.step_tokens - len(active))
        pace = self._pace
        step = self._scheduler.schedule(pace.chunk_tokens, pace.chunk_tokens_alone, pace.batch_tokens)
        for sequence in step.begun:
            self._count_begun(self._generations[sequence])
        groups = len(self._limits.group_windows)
        for slot, entry, page in step.new_pages:
            self._page_tables[entry % groups, slot, entry // groups] = page
        for slot, index, page in step.new_state_pages:
            self._page_tables[groups, slot, index] = page
        for source, target in step.copied_pages:
            self._runner.copy_page(source, target)
        for source, target in step.copied_state_pages:
            self._runner.copy_state_page(source, target)
        for group in step.preempted_groups:
            self._exchange(self._searches[group].preempted())
        for source, target, positions in step.turned_pages:
            self._runner.copy_page_turned(source, target, positions)
        for sequence, begin, end in step.dropped:
            self._generations[sequence].drop(begin, end)
        if self._memory is not None:
            self._is_stuck = not step.sequences and not self._memory.give_way(self._scheduler.active)
        if self._speculation is not None and self._speculation.fills:
            self._outbox.flush()  # as in _compute
            with self._turns:
                self._speculation.fill(step)
        return step

    def _compute(self, step: Step) -> list[int] | None:
        """Runs the model. Returns the sampled tokens, -1 where there is none.

        None: the step was empty, it has failed, or it was interrupted and will be planned again.
        """
        if not step.sequences:
            self._outbox.flush()
            return None
        interrupt = self._interrupt if step.sequences[0].is_batch else None
        batch = self._arrays.fill(step, self._generations, interrupt)
        self._outbox.flush()  # no earlier: whoever it wakes wants the interpreter's lock, which the model gives back
        try:
            with self._turns:
                began_s = time.perf_counter()
                sampled = self._runner.step(batch)
                seconds = time.perf_counter() - began_s
        except Exception as error:
            self._fail(step, error)
            return None
        self._failures_in_a_row = 0
        if sampled is None:
            self._interruptions += 1
            self._pace.interrupted()
            return None
        if interrupt is not None:
            self._pace.batch_completed()
        self._pace.record(len(batch.token_ids), seconds)
        if self._speculation is not None:
            self._speculation.record(step, batch, seconds)
        tokens: list[int] = sampled.tolist()
        return tokens

    def _postprocess(self, step: Step, tokens: list[int] | None) -> None:
        """Appends the sampled tokens and ends the outputs that are complete."""
        if tokens is not None:
            self._steps += 1
            self._computed_tokens += sum(step.query_lengths)
            if self._progress.watched:
                self._progress.computed(step)
            if self._speculation is None or not self._speculation.looks_on:
                self._scheduler.complete(step)
                for sequence, token, sampled in zip(step.sequences, tokens, step.samples, strict=True):
                    if sampled:
                        self._append(sequence, token)
            else:
                taken = self._speculation.accept(step, tokens)
                self._scheduler.complete(step)
                for sequence, several in taken:
                    for token in several:
                        if sequence in self._generations:  # the search's earlier member may have ended it
                            self._append(sequence, token)
            self._rate.add(self._generated_tokens)
        self._statistics = self._count()

    def _append(self, sequence: SequenceState, token: int) -> None:
        """Handles one sampled token: extends the output, or ends it."""
        generation = self._generations[sequence]
        if sequence.group is not None:
            self._advance(self._searches[sequence.group], generation)
            return
        if generation.aborted:  # the abort is in the inbox
            return
        request = generation.request
        if generation.constraint is not None and generation.constraint.error is not None:
            self._forget(generation)
            self._outbox.add(
                generation,
                ConstraintError("The schema became too complex for this output", generation.constraint.error),
            )
            return
        cached = sequence.cached_tokens
        if cached:  # report the cached tokens once
            self._cached_tokens += cached
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
            self._generated_tokens += 1 + len(written)
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
            self._forget(generation)
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
        cached, search.cached_tokens = search.cached_tokens, 0
        self._generated_tokens += len(advance.token_ids) + sum(len(answer.token_ids) for answer in advance.more)
        if advance.finish_reason is not None:
            self._forget(search.root)
        elif not advance.token_ids:
            search.cached_tokens = cached  # for the first delta
            return
        self._cached_tokens += cached
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
            del self._generations[sequence]
        for generation in change.enters:
            self._generations[generation.sequence] = generation

    def _receiver_failed(self, deliver: Deliver) -> None:
        """Aborts the requests of a receiver that has raised an exception; any thread."""
        with self._wake:
            theirs = [generation for generation in self._live.values() if generation.deliver == deliver]
        for generation in theirs:
            self.abort(generation.request.request_id)

    def _forget(self, generation: Generation) -> None:
        """Removes a request with all branches of its search, and frees its pages and slots."""
        group = generation.sequence.group
        if group is None:
            names = [] if self._memory is None else self._memory.names_of(generation.sequence)
            self._scheduler.remove(generation.sequence)
            del self._generations[generation.sequence]
            if self._memory is not None:
                self._memory.ended(generation.sequence, names)
        else:
            search = self._searches.pop(group)
            self._scheduler.remove(group.members[0])
            self._exchange(BranchChange(leaves=search.sequences))
            generation = search.root
        self._progress.forget(generation)
        generation.ended = True
        with self._wake:
            if self._live.get(generation.request.request_id) is generation:
                del self._live[generation.request.request_id]

    def _fail(self, step: Step, error: Exception) -> None:
        """Ends the requests of a failed step.

        Other requests are unaffected: pages are shared only after their step succeeded.
        """
        names = []
        for sequence in step.sequences:
            if sequence not in self._generations:  # another branch has ended its search
                continue
            group = sequence.group
            generation = self._generations[sequence] if group is None else self._searches[group].root
            names.append(generation.request.request_id)
            self._forget(generation)
            if not generation.aborted:
                self._outbox.add(generation, StepFailedError(f"the engine could not compute this request: {error}"))
        logger.error("an engine step of the requests %s has failed", ", ".join(names), exc_info=error)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
            with self._wake:
                self._failed = True
                self._refuse_requests(f"{self._failures_in_a_row} engine steps failed one after another: {error}")

    def _refuse_requests(self, reason: str) -> None:
        """Makes the engine refuse new requests and end its thread before the next step. The caller holds the lock."""
        self._stopping = True
        self._stopped_reason = self._stopped_reason or reason

    def _end_all(self) -> None:
        """Ends all remaining requests with an error that says why the thread has stopped."""
        with self._wake:
            left = list(self._live.values())
            self._live.clear()
            self._inbox.clear()
            reason = self._stopped_reason or "the engine has ended"
        error_type = EngineFailedError if self._failed else EngineStoppedError
        for generation in left:
            self._outbox.add(generation, error_type(reason))
        self._outbox.close()
        while self._generations:
            self._forget(next(iter(self._generations.values())))
        with self._wake:
            calls, self._calls = self._calls, deque()
        for call in calls:  # callers wait for their results
            call()
        if self._memory is not None:
            self._memory.close()
        self._statistics = self._count()

    def _page_evicted(self, page: int, digest: bytes) -> None:
        """Tells the memory and the caller's listener that a cached page is about to be evicted."""
        if self._memory is not None:
            self._memory.saves.evicting(page, digest)
        if self._on_page_evicted is not None:
            self._on_page_evicted(page, digest)

    def _count_begun(self, generation: Generation) -> None:
        if generation.submitted_s is not None:
            if not generation.sequence.is_batch:
                self._begun += 1
                self._queued_s += time.monotonic() - generation.submitted_s
            generation.submitted_s = None

    def _count(self) -> EngineStatistics:
        scheduler = self._scheduler
        return EngineStatistics(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) - scheduler.waiting.batch_count,
            pages_used=scheduler.pool.used_count,
            pages_free=scheduler.pool.free_count,
            steps=self._steps,
            pages_cached=scheduler.pool.cached_count,
            computed_tokens=self._computed_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.preemptions,
            interruptions=self._interruptions,
            begun=self._begun,
            queued_s=self._queued_s,
            drafts={} if self._speculation is None else self._speculation.tokens(),
            generated_tokens_per_s=self._rate.per_s if scheduler.running else 0.0,
            healthy=self._stopped_reason is None,
        )
