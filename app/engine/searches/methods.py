"""Beam search, diverse beams and contrastive search: from the likeliest tokens of some sequences to the next ones.

A method is given a row for each of its sequences (its likeliest next tokens, and what else it asked for) and says which
sequences go on, each as a continuation of one of them by one token. It begins with one row, that of the prompt.

- Beam search as transformers defines it (version 5): of all continuations the `beams` best stay; one that ends in an
  end token among the `beams` best of a step is an answer, scored by log-probability / length ** length_penalty. What
  `early_stopping` says decides when no better answer is waited for.
- Diverse beams (Vijayakumar et al. 2016, "Diverse Beam Search"): groups of beams take their step one after another, and
  a token costs `diversity_penalty` for each beam of an earlier group that just took it. The cost stays in the score.
- Contrastive search (Su et al. 2022, "A Contrastive Framework for Neural Text Generation"): of the `candidates`
  likeliest tokens v that with the highest (1 - alpha) * p(v) - alpha * (largest cosine similarity of v's hidden state
  and one of the text before it).

Knows tokens and numbers only: no pages, no requests, no model.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from app.messages.outputs import Answer, FinishReason
from app.messages.requests import BeamParams, ContrastiveParams


class Row(NamedTuple):
    """What the model says of one sequence's next token."""

    token_ids: Sequence[int]
    """The likeliest, first."""
    logprobs: Sequence[float]
    similarity: float = -1.0
    """The largest cosine similarity of its last token's hidden state and one before it."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What one step came to."""

    children: Sequence[tuple[int, int]] = ()
    """(sequence, token): the next sequences, each one of the present ones and a token more."""
    chosen: int | None = None
    """The sequence that all children continue, its last token being the output's; None: the method isn't like that."""
    token_ids: tuple[int, ...] = ()
    """Those of the output, or of the best one, that are sure now and were not before."""
    finish_reason: FinishReason | None = None
    """None: it goes on."""
    more: tuple[Answer, ...] = ()
    """At the end: the answers after the best."""


class SearchMethod(Protocol):
    """One request's search."""

    width: int
    """The most sequences at one time."""
    row_tokens: int
    """How many of the likeliest tokens a row must have; fewer only if the vocabulary has fewer."""
    penalizes_logprobs: bool
    """Whether penalties change log-probabilities (else logits)."""
    compares_states: bool
    """Whether rows need a similarity."""

    def advance(self, rows: Sequence[Row]) -> Advance:
        """A step; the rows are in the order of the last step's children."""


def make_method(
    params: BeamParams | ContrastiveParams, max_new_tokens: int, end_token_ids: Collection[int]
) -> SearchMethod:
    """A request's method, at its beginning."""
    if isinstance(params, ContrastiveParams):
        return ContrastiveSearch(params, max_new_tokens, end_token_ids)
    return BeamSearch(params, max_new_tokens, end_token_ids)


class _Link(NamedTuple):
    """The end of an output: beams share what is before it."""

    token: int
    before: "_Link | None"


def _tokens(link: _Link | None) -> tuple[int, ...]:
    tokens = []
    while link is not None:
        tokens.append(link.token)
        link = link.before
    return tuple(reversed(tokens))


class _Beam(NamedTuple):
    score: float
    """Sum of log-probabilities, and of what diversity cost."""
    row: int
    """Before a step: its own; after it: its parent's."""
    output: _Link | None


class _Candidate(NamedTuple):
    score: float
    beam: _Beam
    token: int


class _Finished(NamedTuple):
    score: float
    answer: Answer


@dataclass(slots=True)
class _BeamGroup:
    """Beams that compete with each other."""

    beams: int
    running: list[_Beam] = field(default_factory=lambda: [_Beam(0.0, 0, None)])
    finished: list[_Finished] = field(default_factory=list)
    """The best first, at most `beams`."""
    done: bool = False


class BeamSearch:
    """Beams in one group or several."""

    penalizes_logprobs = True
    compares_states = False

    def __init__(self, params: BeamParams, max_new_tokens: int, end_token_ids: Collection[int]) -> None:
        self._params = params
        self._max_new_tokens = max_new_tokens
        self._ends = frozenset(end_token_ids)
        self._length = 0
        self._groups = [_BeamGroup(params.beams // params.groups) for _ in range(params.groups)]
        self.width = params.beams
        # Enough that, whatever ends and whatever diversity rules out, a group's best are among them.
        others = params.beams - params.beams // params.groups if params.diversity_penalty else 0
        self.row_tokens = params.beams // params.groups + len(self._ends) + others

    def advance(self, rows: Sequence[Row]) -> Advance:
        """A step of every group, in order."""
        self._length += 1
        taken: Counter[int] = Counter()
        children: list[tuple[int, int]] = []
        for group in self._groups:
            if group.done:
                continue
            self._advance_group(group, rows, taken)
            for index, beam in enumerate(group.running):
                assert beam.output is not None
                taken[beam.output.token] += 1
                if not group.done:
                    group.running[index] = beam._replace(row=len(children))
                    children.append((beam.row, beam.output.token))
        if not children:
            best, *others = self._answers()
            return Advance((), None, best.token_ids, best.finish_reason, tuple(others))
        return Advance(children)

    def _advance_group(self, group: _BeamGroup, rows: Sequence[Row], taken: Counter[int]) -> None:
        cost = self._params.diversity_penalty
        candidates = [
            _Candidate(beam.score + logprob - cost * taken[token], beam, token)
            for beam in group.running
            for token, logprob in zip(rows[beam.row].token_ids, rows[beam.row].logprobs, strict=True)
            if logprob > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate.score)  # stable: of equals the better beam's, then the row's
        last = self._length == self._max_new_tokens
        for candidate in candidates[: group.beams]:
            if last or candidate.token in self._ends:
                self._finish(group, candidate)
        group.finished.sort(key=lambda finished: -finished.score)
        del group.finished[group.beams :]
        going_on = (candidate for candidate in candidates if candidate.token not in self._ends)
        group.running = [
            _Beam(candidate.score, candidate.beam.row, _Link(candidate.token, candidate.beam.output))
            for candidate, _ in zip(going_on, range(group.beams), strict=False)
        ]
        group.done = self._is_done(group)

    def _finish(self, group: _BeamGroup, candidate: _Candidate) -> None:
        ended = candidate.token in self._ends
        output = candidate.beam.output if ended else _Link(candidate.token, candidate.beam.output)
        answer = Answer(_tokens(output), "stop" if ended else "length")
        group.finished.append(_Finished(self._normalized(candidate.score, self._length), answer))

    def _is_done(self, group: _BeamGroup) -> bool:
        if not group.running or self._length == self._max_new_tokens:
            return True
        if len(group.finished) < group.beams:
            return False
        if self._params.early_stopping is True:
            return True
        hopes_for_length = self._params.early_stopping == "never" and self._params.length_penalty > 0
        length = self._max_new_tokens if hopes_for_length else self._length
        return self._normalized(group.running[0].score, length) <= group.finished[-1].score

    def _normalized(self, score: float, length: int) -> float:
        """The end token counts."""
        return score / math.pow(length, self._params.length_penalty)

    def _answers(self) -> Sequence[Answer]:
        """The best of all groups. Of a model that says nothing but NaN there are empty ones."""
        finished = sorted((each for group in self._groups for each in group.finished), key=lambda each: -each.score)
        answers = [each.answer for each in finished[: self._params.answers]]
        return answers + [Answer((), "length")] * (self._params.answers - len(answers))


class ContrastiveSearch:
    """One text, and the likeliest tokens to go on with as sequences of their own."""

    penalizes_logprobs = False
    compares_states = True

    def __init__(self, params: ContrastiveParams, max_new_tokens: int, end_token_ids: Collection[int]) -> None:
        self._alpha = params.alpha
        self._max_new_tokens = max_new_tokens
        self._ends = frozenset(end_token_ids)
        self._length = 0
        self._candidates: list[tuple[int, float]] = []
        self.width = self.row_tokens = params.candidates

    def advance(self, rows: Sequence[Row]) -> Advance:
        """Chooses one of the candidates whose rows these are; the first row is the prompt's, and chooses none."""
        if not self._candidates:
            return self._go_on(None, rows[0], ())
        scores = [
            (1 - self._alpha) * probability - self._alpha * row.similarity
            for (_, probability), row in zip(self._candidates, rows, strict=True)
        ]
        chosen = max(range(len(scores)), key=scores.__getitem__)  # of equals the likelier
        token = self._candidates[chosen][0]
        if token in self._ends:
            return Advance(finish_reason="stop")
        self._length += 1
        if self._length == self._max_new_tokens:
            return Advance(token_ids=(token,), finish_reason="length")
        return self._go_on(chosen, rows[chosen], (token,))

    def _go_on(self, chosen: int | None, row: Row, token_ids: tuple[int, ...]) -> Advance:
        self._candidates = [
            (candidate, math.exp(logprob))
            for candidate, logprob in zip(row.token_ids, row.logprobs, strict=True)
            if logprob > -math.inf
        ]
        if not self._candidates:  # of a model that says nothing but NaN
            return Advance(token_ids=token_ids, finish_reason="length")
        return Advance([(chosen or 0, candidate) for candidate, _ in self._candidates], chosen, token_ids)
