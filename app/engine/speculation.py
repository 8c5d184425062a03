"""Guessing the next tokens from the text itself, and knowing when that pays.

An answer often repeats its prompt, or itself: where the last tokens stood before, what followed then is a guess now
(the idea of Saxena 2023, "Prompt Lookup Decoding"). The model computes a token and the guesses after it in one step,
the sampler draws at each place as it would have anyway, and the first guess that is not what it drew ends the step's
harvest: so texts are the same with guesses and without, drawn ones too.

A guess costs a row of a step. What that takes is learned from steps as they run, and how often guesses are right from
each request's own text, also while none are made; so it turns itself off where it does not pay.

Knows neither pages nor the model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from app.engine.sequence import SequenceState, Step
from app.engine.types import Batch

if TYPE_CHECKING:
    from app.engine.batch import Generation

MAX_RUNNING = 16
"""With more requests than this nobody guesses: their rows fill the kernels already."""
_LONGEST_MATCH = 3
_SHORTEST_MATCH = 2
# Before anything is known: a text is not expected to copy, but once it does, to go on. To wait for the first right
# guess costs one token of a run.
_FIRST_ACCEPTANCE = (0.2, 0.8)
_ACCEPTANCE_RATE = 0.15


class NgramDrafter:
    """One request's guesses. `tokens` is the engine's list of prompt and output, which grows.

    Texts copy in runs: a guess after a right one is mostly right. So there are two chances, after a right guess and
    after none or a wrong one, each a moving mean of what became of such guesses.
    """

    __slots__ = ("_acceptance", "_copies", "_followers", "_guesses", "_indexed", "_tokens")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._acceptance = list(_FIRST_ACCEPTANCE)
        self._copies = False
        self._guesses: list[int] = []
        self.forget()

    def guesses_that_pay(self, break_even: float) -> int:
        """How many of the next guesses are likely enough to be right, each only if those before it are."""
        first, later = self._acceptance[self._copies], self._acceptance[True]
        if first < break_even:
            return 0
        if later >= 1 or break_even <= 0:
            return len(self._guesses)
        return min(len(self._guesses), 1 + int(math.log(break_even / first) / math.log(later)))

    def forget(self) -> None:
        """Begins anew: tokens were taken out of the list."""
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._guesses = []

    def look_up(self, most: int) -> list[int]:
        """Guesses at the tokens that come next, at most so many; they are remembered until `learn`."""
        tokens = self._tokens
        self._index()
        self._guesses = []
        for length in range(_LONGEST_MATCH, _SHORTEST_MATCH - 1, -1):
            begin = self._followers.get(tuple(tokens[-length:]))
            if begin is not None:
                piece = tokens[begin : begin + most]  # and where that reaches the end, it goes on from its beginning
                self._guesses = (piece * (most // len(piece) + 1))[:most] if piece else piece
                return self._guesses
        self._copies = False
        return self._guesses

    def learn(self, sampled: Iterable[int]) -> None:
        """What came instead: counts each guess up to the first wrong one, computed or not."""
        for guess, token in zip(self._guesses, sampled, strict=False):
            chance = self._acceptance[self._copies]
            self._acceptance[self._copies] += _ACCEPTANCE_RATE * ((guess == token) - chance)
            self._copies = guess == token
            if not self._copies:
                break

    def _index(self) -> None:
        """Notes what follows each pair and triple of tokens that something follows; the latest place counts."""
        tokens, followers = self._tokens, self._followers
        for end in range(max(self._indexed, _SHORTEST_MATCH), len(tokens)):
            followers[tokens[end - 2], tokens[end - 1]] = end
            if end >= _LONGEST_MATCH:
                followers[tokens[end - 3], tokens[end - 2], tokens[end - 1]] = end
        self._indexed = max(self._indexed, len(tokens))


class StepCost:
    """What a step takes by its rows, as a line fitted to recent steps; until they differ, a guess at its slope."""

    __slots__ = ("_rows", "_rows_rows", "_rows_s", "_s", "_weight")

    PRIOR_SLOPE = 0.25
    """Of a step with one row, for one row more."""
    _PRIOR_WEIGHT = 10
    """As if so many steps had had a row more."""
    _FORGET = 0.99

    def __init__(self) -> None:
        self._weight = self._rows = self._rows_rows = self._s = self._rows_s = 0.0

    def record(self, rows: int, seconds: float) -> None:
        """A step of decoding, and nothing else, took so long."""
        keep = self._FORGET
        if self._weight > 10:  # a stall of the machine tells nothing about rows
            seconds = min(seconds, 3 * self._s / self._weight)
        self._weight = keep * self._weight + 1
        self._rows = keep * self._rows + rows
        self._rows_rows = keep * self._rows_rows + rows * rows
        self._s = keep * self._s + seconds
        self._rows_s = keep * self._rows_s + rows * seconds

    def break_even(self, rows: int) -> float:
        """The least probability of being right at which one more row pays in a step of `rows`, one token each."""
        if self._weight == 0:
            return self.PRIOR_SLOPE * rows / (1 + self.PRIOR_SLOPE * (rows - 1))
        mean_rows, mean_s = self._rows / self._weight, self._s / self._weight
        prior_s = self.PRIOR_SLOPE * mean_s / (1 + self.PRIOR_SLOPE * (mean_rows - 1))
        spread = self._rows_rows - mean_rows * self._rows
        slope = (self._rows_s - mean_rows * self._s + self._PRIOR_WEIGHT * prior_s) / (spread + self._PRIOR_WEIGHT)
        slope = max(slope, 0.0)
        step_s = max(mean_s + slope * (rows - mean_rows), 1e-9)
        return min(slope * rows / step_s, 1.0)


class Speculation:
    """The engine's guesses: before a step for whom and how many, after it what became of them."""

    def __init__(self, guess_tokens: int) -> None:
        """`guess_tokens`: the most guesses of one request in a step."""
        self._most = guess_tokens
        self._cost = StepCost()
        self.looked_up: list[Generation] = []
        """Requests for which there were guesses in this step, computed or not."""
        self.guessed_tokens = 0
        self.right_guesses = 0

    def guess(
        self, running: Sequence[SequenceState], generations: "Mapping[SequenceState, Generation]", spare: int
    ) -> None:
        """Sets `drafts` of the sequences that decode, `spare` in all at most."""
        for generation in self.looked_up:
            generation.sequence.drafts = 0
        self.looked_up = []
        if len(running) > MAX_RUNNING:
            return
        break_even = self._cost.break_even(len(running))
        for sequence in running:
            generation = generations[sequence]
            room = sequence.end_length - sequence.length - 1
            if generation.drafter is None or room < 1 or sequence.length - sequence.computed != 1:
                continue
            generation.guesses = generation.drafter.look_up(min(self._most, room))
            if generation.guesses:
                self.looked_up.append(generation)
                sequence.drafts = min(generation.drafter.guesses_that_pay(break_even), spare)
                spare -= sequence.drafts

    def record(self, step: Step, batch: Batch, seconds: float) -> None:
        """A step was run: if it was one of decoding, what it cost is of interest."""
        rows, sequences = len(batch.token_ids), len(step.sequences)
        if sequences <= MAX_RUNNING:
            guesses = 0 if batch.draft_lengths is None else int(batch.draft_lengths.sum())
            if rows == sequences + guesses:
                self._cost.record(rows, seconds)

    def harvest(self, step: Step, tokens: Sequence[int]) -> list[tuple[SequenceState, Sequence[int]]]:
        """What each sampled sequence got; wrong guesses are taken out of the step's `query_lengths`."""
        taken: list[tuple[SequenceState, Sequence[int]]] = []
        begin = 0
        for index, (sequence, count) in enumerate(zip(step.sequences, step.query_lengths, strict=True)):
            guesses = max(0, sequence.computed + count - sequence.length)
            places = tokens[begin : begin + 1 + guesses]
            begin += len(places)
            if guesses:
                if -1 in places:
                    places = places[: places.index(-1)]
                right = len(places) - 1
                step.query_lengths[index] -= guesses - right
                self.guessed_tokens += guesses
                self.right_guesses += right
            if step.samples[index]:
                taken.append((sequence, places))
        by_sequence = dict(taken)
        for generation in self.looked_up:
            assert generation.drafter is not None
            generation.drafter.learn(by_sequence.get(generation.sequence, ()))
        return taken
