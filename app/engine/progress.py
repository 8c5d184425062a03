"""Reports prompt progress to requests that ask for it: their place in the queue, and the computed part of the prompt.

A request gets a report when something has changed, but at most one every PERIOD_S, and a last one when its prompt is
complete. Used by the engine's thread only. Knows nothing of tokens, nor of who reads the reports.
"""

import time
from typing import Final

from app.engine.generation import Generation
from app.engine.outbox import Outbox
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceState, Step
from app.messages.outputs import PromptProgress, TokenDelta

PERIOD_S: Final = 0.25


class ProgressReports:
    """Watches the requests that want reports, until their prompts are complete."""

    def __init__(self, scheduler: Scheduler, outbox: Outbox) -> None:
        self.watched: dict[SequenceState, _Watch] = {}
        """Watches by the sequence that computes the prompt. If empty, a step has nothing to do here."""
        self._scheduler = scheduler
        self._outbox = outbox

    def watch(self, generation: Generation) -> None:
        """Starts reports for a request; for a search, pass its first generation."""
        self.watched[generation.sequence] = _Watch(generation)

    def forget(self, generation: Generation) -> None:
        """Stops reports for a request that has ended."""
        self.watched.pop(generation.sequence, None)

    def scheduled(self) -> None:
        """Adds due reports to the outbox before a step is computed."""
        now_s = time.monotonic()
        due = [watch for watch in self.watched.values() if watch.due_s <= now_s]
        if not due:
            return
        places = {sequence: place for place, sequence in enumerate(self._scheduler.waiting)}
        for watch in due:
            if watch.changed(places.get(watch.generation.sequence)):
                self._tell(watch, now_s)

    def computed(self, step: Step) -> None:
        """Adds the last report of prompts that the step has completed. Call it before the step's tokens are counted."""
        for sequence, is_complete in zip(step.sequences, step.samples, strict=True):
            if is_complete and (watch := self.watched.pop(sequence, None)) is not None:
                watch.read_tokens, watch.queued_ahead = sequence.prompt_tokens, None
                self._tell(watch, time.monotonic())

    def _tell(self, watch: "_Watch", now_s: float) -> None:
        watch.due_s = now_s + PERIOD_S
        self._outbox.add(watch.generation, TokenDelta((), progress=watch.news(now_s)))


class _Watch:
    """One request and its last report."""

    __slots__ = ("_began_s", "due_s", "generation", "queued_ahead", "read_tokens")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.due_s = 0.0
        """Earliest time of the next report, on the monotonic clock in seconds."""
        self.read_tokens = -1
        self.queued_ahead: int | None = None
        self._began_s: float | None = None

    def changed(self, queued_ahead: int | None) -> bool:
        """Updates the progress. Returns whether it has changed."""
        sequence = self.generation.sequence
        # A preempted sequence starts over; its progress is reported once it exceeds the last report.
        read_tokens = max(self.read_tokens, sequence.computed + sequence.dropped)
        is_news = (read_tokens, queued_ahead) != (self.read_tokens, self.queued_ahead)
        self.read_tokens, self.queued_ahead = read_tokens, queued_ahead
        return is_news

    def news(self, now_s: float) -> PromptProgress:
        sequence = self.generation.sequence
        if self.queued_ahead is None and self._began_s is None:
            self._began_s = now_s
        elapsed_s = 0.0 if self._began_s is None else now_s - self._began_s
        return PromptProgress(
            sequence.prompt_tokens, sequence.cached_tokens, self.read_tokens, elapsed_s, self.queued_ahead
        )
