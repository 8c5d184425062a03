"""Counts the tokens of a request's choices."""

from collections.abc import Sequence

from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.planning.job import Job
from app.interface.wire.generation import Usage


class TokenCount:
    """The token counts of all choices."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self._cached_tokens = [0] * job.outputs

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        for delta in deltas:
            self._completion_tokens += delta.tokens
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
            completion_tokens=self._completion_tokens,
            cached_tokens=sum(cached),
            reasoning_tokens=self._reasoning_tokens,
        )
