"""Collects the choices of a whole chat completion or completion. Knows neither's format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.usage import TokenCount
from app.interface.generate.planning.job import Job
from app.interface.wire.generation import ContextUse, FinishReason, ReasoningCut, Usage


@dataclass(slots=True)
class CollectedCall:
    """A function call of a choice."""

    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The whole arguments, as the JSON that the model wrote."""
        return "".join(self.pieces)


@dataclass(slots=True)
class CollectedChoice:
    """A choice, collected from all of its deltas."""

    finish_reason: FinishReason = "length"
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    """OpenAI's lists by name; empty if no scores were requested."""
    calls: list[CollectedCall] = field(default_factory=list)
    cut: ReasoningCut | None = None
    """What ended the thought, if it was not the model."""
    token_ids: list[int] = field(default_factory=list)
    """Empty if the client does not want to know them."""
    _texts: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _logprob: float = 0.0
    _tokens: int = 0

    def add(self, delta: ChoiceDelta) -> None:
        self._texts.append(delta.text)
        self._thoughts.append(delta.thought)
        self.cut = delta.cut or self.cut
        self.finish_reason = delta.finish_reason or self.finish_reason
        self._logprob += delta.logprob
        self._tokens += delta.tokens
        self.token_ids += delta.token_ids
        for name, entries in (delta.logprobs or {}).items():
            self.logprobs.setdefault(name, []).extend(entries)
        for call in delta.calls:
            if call.call_id is not None and call.name is not None:
                self.calls.append(CollectedCall(call.call_id, call.name))
            self.calls[call.index].pieces.append(call.arguments)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thought(self) -> str:
        """The thought; may be empty."""
        return "".join(self._thoughts)

    @property
    def mean_logprob(self) -> float:
        """The mean log probability of its tokens, by which OpenAI ranks choices."""
        return self._logprob / self._tokens if self._tokens else float("-inf")


class CollectedChoices:
    """All choices of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._choices = [CollectedChoice() for _ in range(job.outputs)]
        self._count = TokenCount(job)

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._count.add(deltas)
        for delta in deltas:
            self._choices[delta.index].add(delta)

    def usage(self) -> Usage:
        """Returns the usage of all choices, including those that are not returned."""
        return self._count.usage()

    def context(self) -> ContextUse | None:
        """Returns what the model saw of the conversation; None: nothing was to be left out."""
        return self._count.context()

    def best(self) -> Sequence[CollectedChoice]:
        """Returns the choices of the answer; with `best_of` the most likely ones of each prompt, best first."""
        if self._job.answers is None:
            return self._choices
        best: list[CollectedChoice] = []
        for begin in range(0, len(self._choices), self._job.choices):
            ranked = sorted(self._choices[begin : begin + self._job.choices], key=lambda choice: -choice.mean_logprob)
            best += ranked[: self._job.answers]
        return best
