"""The engine: one thread that turns requests into tokens, a step at a time.

Callers submit requests and get events back through a callback. The thread takes requests from its inbox, asks the
scheduler for a step, fills the step's arrays, calls the model once, and takes the tokens (outputs.py). While the model
computes, the interpreter lock is free, and another thread delivers the tokens of the step before (outbox.py).

A step of batches alone is interrupted when a request comes that somebody waits for, and planned again later.

Knows nothing of text, HTTP, asyncio or Ray, nor of how a model computes a step.
"""

import logging
import os
import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from app.engine.batch import BatchArrays
from app.engine.expert_reads import ExpertReads
from app.engine.generation import Deliver
from app.engine.inbox import Inbox
from app.engine.intake import Intake
from app.engine.memory.engine_memory import EngineMemory, MemoryOptions, asked
from app.engine.memory.page_store import PageStore
from app.engine.model_runner import ModelRunner, TokenConstraint
from app.engine.outbox import Outbox
from app.engine.outputs import Outputs
from app.engine.page_changes import apply_page_changes
from app.engine.pages.page_names import CACHE_SECRET_BYTES
from app.engine.pages.page_pool import OnPageEvicted
from app.engine.progress import ProgressReports
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.pace import PromptPace
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import Step
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.speculation import Speculation
from app.engine.statistics import EngineCounters, EngineStatistics
from app.messages.defaults import PROMPT_CHUNK_TOKENS
from app.messages.failures import EngineFailedError, EngineStoppedError
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
        self._speculation: Speculation | None = None
        if guess_tokens or drafts is not None:
            self._speculation = Speculation(guess_tokens, experts, drafts, self._scheduler.expected_tokens)
            self._scheduler.on_leave = self._speculation.forget
        self._pace = PromptPace(prompt_chunk_tokens, prompt_pause_s, experts)
        self._inbox = Inbox()
        self._memory: EngineMemory | None = None
        if page_store is not None:
            self._memory = EngineMemory(
                self._scheduler,
                runner,
                page_store,
                memory or MemoryOptions(),
                post=self._inbox.post,
                seconds_per_token=lambda: self._pace.seconds_per_token,
                computing=lambda: bool(self._outputs.generations),
                on_clear=None if self._speculation is None else self._speculation.clear,
            )
        self._turns = nullcontext() if turns is None else turns
        self._outbox = Outbox(self._inbox.abort_all_of)
        self._progress = ProgressReports(self._scheduler, self._outbox)
        self._counters = EngineCounters()
        self._outputs = Outputs(
            self._scheduler,
            inbox=self._inbox,
            outbox=self._outbox,
            progress=self._progress,
            counters=self._counters,
            memory=self._memory,
        )
        self._is_stuck = False  # all sequences wait for pages that are loaded or saved
        self._failures_in_a_row = 0
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
        self._inbox.submit(*self._intake.make(request, deliver, key, constraint))

    def abort(self, request_id: str) -> None:
        """Ends a request, queued or running, without a further event; does nothing if it is unknown or has ended.

        Takes effect before the next step; the step that is running is not interrupted.
        """
        self._inbox.abort(request_id)

    @property
    def memory(self) -> EngineMemory | None:
        """Saves and loads KV pages; None without a page store."""
        return self._memory

    def release_memory(self) -> "Future[bool]":
        """Evicts all cached pages and gives the model's memory back, until the next request needs it.

        The result is False, and nothing changes, if a request or its pages are in use. Raises EngineStoppedError in
        the future.
        """

        def release(future: "Future[bool]") -> None:
            states = self._scheduler.states
            pools = [self._scheduler.pool] if states is None else [self._scheduler.pool, states.pool]
            is_idle = not self._outputs.generations and not any(pool.used_count for pool in pools)
            if is_idle:
                for pool in pools:
                    pool.evict_all()
                self._runner.release_memory()
                if self._speculation is not None:
                    self._speculation.release_memory()
                self._statistics = self._count()
            future.set_result(is_idle)

        return asked(self._inbox.post, release)

    def forget_draft_chances(self) -> None:
        """Forgets how often drafts of a model were right, before the next step: those of random texts say nothing."""
        if self._speculation is not None:
            self._inbox.post(self._speculation.forget_chances)

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
        return self._thread.is_alive() and self._inbox.closed_by is None

    def stop(self) -> None:
        """Ends the thread after its current step; unfinished requests get EngineStoppedError. Idempotent."""
        self._inbox.close(EngineStoppedError("the engine is shutting down"))
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
            self._inbox.close(EngineFailedError("the engine has failed; see its log"))
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
        self._inbox.interrupt[0] = 0
        computes = bool(self._outputs.generations) and not self._is_stuck
        if (self._inbox.has_news or not computes) and not self._take_inbox(computes):
            return False
        if self._memory is not None:
            self._memory.advance()
        return True

    def _take_inbox(self, computes: bool) -> bool:
        """Waits until there is something to do, and does what the inbox has. Returns False to end the thread.

        computes: whether the next step has something to compute even if nothing comes.
        """
        inbox = self._inbox
        if inbox.has_calls or not computes:  # otherwise _compute sends them, and soon
            self._outbox.flush()
        if not (computes or inbox.has_news):
            self._statistics = self._count()
            inbox.wait(None if self._memory is None else self._memory.wait_s())
            self._counters.rate.restart(self._counters.generated_tokens)
        if inbox.closed_by is not None:
            return False
        entries, calls = inbox.take()
        for action, generation, search in entries:
            if action == "submit":
                self._outputs.add(generation, search)
            elif not generation.ended:
                self._outputs.remove(generation)
        for call in calls:
            call()
        return True

    def _schedule(self) -> Step:
        """Plans the next step and prepares it: page tables, page copies, shifted context windows."""
        if self._speculation is not None:
            active = self._scheduler.active
            self._speculation.pause(self._scheduler.running[len(active) :])
            self._speculation.draft(active, self._outputs.generations, self._limits.step_tokens - len(active))
        pace = self._pace
        step = self._scheduler.schedule(pace.chunk_tokens, pace.chunk_tokens_alone, pace.batch_tokens)
        apply_page_changes(step, self._runner)
        self._outputs.scheduled(step)
        if self._memory is not None:
            self._is_stuck = not step.sequences and not self._memory.give_way(self._scheduler.active)
        if self._speculation is not None and self._speculation.fills(step, self._outputs.generations):
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
        interrupt = self._inbox.interrupt if step.sequences[0].is_batch else None
        batch = self._arrays.fill(step, self._outputs.generations, interrupt)
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
            self._counters.interruptions += 1
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
            counters, outputs = self._counters, self._outputs
            counters.steps += 1
            counters.computed_tokens += sum(step.query_lengths)
            if self._progress.watched:
                self._progress.computed(step)
            if self._speculation is None or not self._speculation.looks_on:
                self._scheduler.complete(step)
                for sequence, token, sampled in zip(step.sequences, tokens, step.samples, strict=True):
                    if sampled:
                        outputs.append(sequence, token)
            else:
                taken = self._speculation.accept(step, tokens)
                self._scheduler.complete(step)
                for sequence, several in taken:
                    for count, token in enumerate(several, start=1):
                        if sequence in outputs.generations:  # the search's earlier member may have ended it
                            outputs.append(sequence, token, is_last=count == len(several))
            counters.rate.add(counters.generated_tokens)
        self._statistics = self._count()

    def _fail(self, step: Step, error: Exception) -> None:
        self._outputs.fail(step, error)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
            reason = f"{self._failures_in_a_row} engine steps failed one after another: {error}"
            self._inbox.close(EngineFailedError(reason))

    def _end_all(self) -> None:
        """Ends all remaining requests with an error that says why the thread has stopped."""
        reason = self._inbox.closed_by or EngineStoppedError("the engine has ended")
        for generation in self._inbox.take_live():
            self._outbox.add(generation, type(reason)(str(reason)))
        self._outbox.close()
        self._outputs.remove_all()
        _, calls = self._inbox.take()
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

    def _count(self) -> EngineStatistics:
        scheduler, counters = self._scheduler, self._counters
        return EngineStatistics(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) - scheduler.waiting.batch_count,
            pages_used=scheduler.pool.used_count,
            pages_free=scheduler.pool.free_count,
            steps=counters.steps,
            pages_cached=scheduler.pool.cached_count,
            computed_tokens=counters.computed_tokens,
            cached_tokens=counters.cached_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=scheduler.preemptions,
            interruptions=counters.interruptions,
            begun=counters.begun,
            queued_s=counters.queued_s,
            drafts={} if self._speculation is None else self._speculation.tokens(),
            drafts_failed=self._speculation is not None and self._speculation.has_failed,
            generated_tokens_per_s=counters.rate.per_s if scheduler.running else 0.0,
            healthy=self._inbox.closed_by is None,
        )
