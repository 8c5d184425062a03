"""News of the prompts of requests that ask for it: where they wait, and how much of a prompt is there.

A request gets news when something has changed, but not more often than every PERIOD_S, and once more when its prompt is
complete. Used by the engine's thread only. Knows nothing of tokens, nor of who reads the news.
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
    """Watches the requests that ask, until their prompts are complete."""

    def __init__(self, scheduler: Scheduler, outbox: Outbox) -> None:
        """Starts without requests."""
        self.watched: dict[SequenceState, _Watch] = {}
        """By the sequence that computes the prompt. Empty: there is nothing to do in a step."""
        self._scheduler = scheduler
        self._outbox = outbox

    def watch(self, generation: Generation) -> None:
        """A request that asks has come; of a search, its first generation."""
        self.watched[generation.sequence] = _Watch(generation)

    def forget(self, generation: Generation) -> None:
        """The request has ended."""
        self.watched.pop(generation.sequence, None)

    def scheduled(self) -> bool:
        """A step is about to be computed. Returns whether there is news, which the outbox has now."""
        now_s = time.monotonic()
        due = [watch for watch in self.watched.values() if watch.due_s <= now_s]
        if not due:
            return False
        places = {sequence: place for place, sequence in enumerate(self._scheduler.waiting)}
        has_news = False
        for watch in due:
            if watch.changed(places.get(watch.generation.sequence)):
                self._tell(watch, now_s)
                has_news = True
        return has_news

    def computed(self, step: Step) -> None:
        """The step has been computed, and its tokens are not counted yet: prompts that it completes are told so."""
        for sequence, is_complete in zip(step.sequences, step.samples, strict=True):
            if is_complete and (watch := self.watched.pop(sequence, None)) is not None:
                watch.read_tokens, watch.queued_ahead = sequence.prompt_tokens, None
                self._tell(watch, time.monotonic())

    def _tell(self, watch: "_Watch", now_s: float) -> None:
        watch.due_s = now_s + PERIOD_S
        self._outbox.add(watch.generation, TokenDelta((), progress=watch.news(now_s)))


class _Watch:
    """One request, and what it was told last."""

    __slots__ = ("_began_s", "due_s", "generation", "queued_ahead", "read_tokens")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.due_s = 0.0
        """When it may be told again, of the monotonic clock."""
        self.read_tokens = -1
        self.queued_ahead: int | None = None
        self._began_s: float | None = None

    def changed(self, queued_ahead: int | None) -> bool:
        """Takes in where it is now; whether that is news."""
        sequence = self.generation.sequence
        # A sequence that was preempted begins again, and is told of when it is further than it was.
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
