"""Counts the tokens of a request's choices, and tells what the model saw of the conversation."""

from collections.abc import Sequence

from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.planning.job import Job
from app.interface.wire.generation import ContextUse, Usage


class TokenCount:
    """The token counts of all choices."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._choice_tokens = [0] * job.outputs
        self._is_full = False
        self._reasoning_tokens = 0
        self._cached_tokens = [0] * job.outputs

    @property
    def is_full(self) -> bool:
        """Whether a choice has ended because the context was full."""
        return self._is_full

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        for delta in deltas:
            self._choice_tokens[delta.index] += delta.tokens
            if delta.finish_reason == "length" and self._job.wanted_tokens is not None:
                self._is_full |= self._choice_tokens[delta.index] < self._job.wanted_tokens
            self._reasoning_tokens += delta.thought_tokens
            self._cached_tokens[delta.index] += delta.cached_tokens

    def usage(self) -> Usage:
        """Returns the usage so far. A prompt counts once.

        Choices of the same prompt may find each other's KV pages in the prefix cache, so the smallest number of cached
        tokens is what was cached before the request.
        """
        each = self._job.choices
        cached = [min(self._cached_tokens[i : i + each]) for i in range(0, len(self._cached_tokens), each)]
        return Usage.of(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=sum(self._choice_tokens),
            cached_tokens=sum(cached),
            reasoning_tokens=self._reasoning_tokens,
        )

    def context(self) -> ContextUse | None:
        """Returns what the model saw, and whether a choice has ended because the context was full.

        None: nothing was to be left out.
        """
        left_out = self._job.left_out
        if left_out is None:
            return None
        return ContextUse(left_out_turns=left_out.turns, limit_tokens=left_out.limit_tokens, full=self._is_full)
