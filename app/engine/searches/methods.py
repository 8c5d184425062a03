"""Beam search, diverse beam search and contrastive search: which sequences continue, and with which tokens.

A method gets a row for each of its sequences, with the likeliest next tokens. It returns the next sequences, each of
which extends a present one by one token. The first step has one row, the prompt's.

- Beam search as transformers defines it (version 5): the `beams` best continuations stay. A continuation by an end
  token that is among the `beams` best of its step is an answer, scored by log-probability / length ** length_penalty.
  `early_stopping` decides when the search no longer waits for better answers.
- Diverse beam search (Vijayakumar et al. 2016, "Diverse Beam Search"): groups of beams take their step one after
  another. A token costs `diversity_penalty` for each beam of an earlier group that took it in this step. The cost stays
  in the score.
- Contrastive search (Su et al. 2022, "A Contrastive Framework for Neural Text Generation"): of the `candidates`
  likeliest tokens v it takes the one with the highest (1 - alpha) * p(v) - alpha * (largest cosine similarity of v's
  hidden state and that of a token before it).

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
    """The model's results for one sequence."""

    token_ids: Sequence[int]
    """The likeliest next tokens, the likeliest first."""
    logprobs: Sequence[float]
    """Log-probability of each token."""
    similarity: float = -1.0
    """The largest cosine similarity of the last token's hidden state to that of an earlier token."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of one step of a search."""

    children: Sequence[tuple[int, int]] = ()
    """The next sequences, as (index of a present sequence, token that continues it)."""
    chosen: int | None = None
    """Contrastive search: the index of the sequence that all children continue; its last token joins the output."""
    token_ids: tuple[int, ...] = ()
    """New tokens of the output, or of the best output."""
    finish_reason: FinishReason | None = None
    """None: the search continues."""
    end_token_id: int | None = None
    """The end token of the best output."""
    more: tuple[Answer, ...] = ()
    """The answers after the best, at the end of the search."""


class SearchMethod(Protocol):
    """One request's search method, with its state."""

    width: int
    """The most sequences at one time."""
    row_tokens: int
    """How many tokens a row must have; fewer only if the vocabulary has fewer."""
    penalizes_logprobs: bool
    """Whether penalties change log-probabilities; otherwise they change logits."""
    compares_states: bool
    """Whether rows need a similarity."""

    def advance(self, rows: Sequence[Row]) -> Advance:
        """Makes a step. The rows are in the order of the previous step's children."""


def make_method(
    params: BeamParams | ContrastiveParams, max_new_tokens: int, end_token_ids: Collection[int]
) -> SearchMethod:
    """Makes the search method of a new request."""
    if isinstance(params, ContrastiveParams):
        return ContrastiveSearch(params, max_new_tokens, end_token_ids)
    return BeamSearch(params, max_new_tokens, end_token_ids)


class _Link(NamedTuple):
    """The last token of an output, linked to the earlier ones, which beams share."""

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
    """The sum of log-probabilities, minus diversity penalties."""
    row: int
    """Index of a row: its own before a step, its parent's after it."""
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
    """The best answers, at most `beams`, best first."""
    done: bool = False


class BeamSearch:
    """Beam search with one group of beams or several."""

    penalizes_logprobs = True
    compares_states = False

    def __init__(self, params: BeamParams, max_new_tokens: int, end_token_ids: Collection[int]) -> None:
        self._params = params
        self._max_new_tokens = max_new_tokens
        self._ends = frozenset(end_token_ids)
        self._length = 0
        self._groups = [_BeamGroup(params.beams // params.groups) for _ in range(params.groups)]
        self.width = params.beams
        # Enough for a group's best, whichever tokens are end tokens or penalized for diversity.
        others = params.beams - params.beams // params.groups if params.diversity_penalty else 0
        self.row_tokens = params.beams // params.groups + len(self._ends) + others

    def advance(self, rows: Sequence[Row]) -> Advance:
        """Makes a step of every group, in order."""
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
            return Advance((), None, best.token_ids, best.finish_reason, best.end_token_id, tuple(others))
        return Advance(children)

    def _advance_group(self, group: _BeamGroup, rows: Sequence[Row], taken: Counter[int]) -> None:
        cost = self._params.diversity_penalty
        candidates = [
            _Candidate(beam.score + logprob - cost * taken[token], beam, token)
            for beam in group.running
            for token, logprob in zip(rows[beam.row].token_ids, rows[beam.row].logprobs, strict=True)
            if logprob > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate.score)  # stable: the better beam's comes first among equals
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
        answer = Answer(_tokens(output), "stop" if ended else "length", candidate.token if ended else None)
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
        """Returns an answer's score; `length` includes the end token."""
        return score / math.pow(length, self._params.length_penalty)

    def _answers(self) -> Sequence[Answer]:
        """Returns the best answers of all groups, padded with empty ones where a model gave only NaN."""
        finished = sorted((each for group in self._groups for each in group.finished), key=lambda each: -each.score)
        answers = [each.answer for each in finished[: self._params.answers]]
        return answers + [Answer((), "length")] * (self._params.answers - len(answers))


class ContrastiveSearch:
    """Contrastive search: tries each of the likeliest next tokens of one text as a sequence."""

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
        """Chooses one of the candidates, which the rows belong to.

        The first call has the prompt's row and chooses none.
        """
        if not self._candidates:
            return self._go_on(None, rows[0], ())
        scores = [
            (1 - self._alpha) * probability - self._alpha * row.similarity
            for (_, probability), row in zip(self._candidates, rows, strict=True)
        ]
        chosen = max(range(len(scores)), key=scores.__getitem__)  # the likelier among equals
        token = self._candidates[chosen][0]
        if token in self._ends:
            return Advance(finish_reason="stop", end_token_id=token)
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
        if not self._candidates:  # the model gave only NaN
            return Advance(token_ids=token_ids, finish_reason="length")
        return Advance([(chosen or 0, candidate) for candidate, _ in self._candidates], chosen, token_ids)
