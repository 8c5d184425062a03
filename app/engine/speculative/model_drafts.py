"""Decides by time how many tokens a model drafts (draft_source.py), and has them drafted.

A draft costs time of its own, and each draft token a row of the target's step. Both are measured by rows, and how often
drafts are right is learned (draft_chances.py). Drafting is planned where that predicts more tokens per second, and goes
on for each sequence as long as its next token is worth its time. Where it does not pay, there are drafts now and then
all the same, which lose a small share of the time, to notice when it would: probes.

Knows neither pages nor how tokens are drafted.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from app.engine.generation import Generation
from app.engine.scheduling.sequence import SequenceState
from app.engine.speculative.draft_chances import DraftChances
from app.engine.speculative.draft_source import DraftSource, DraftToken
from app.engine.speculative.step_cost import StepCost

LEAST_GAIN: Final = 1.02
"""The predicted speedup that drafts must reach: step times are not known more exactly."""
_RATE: Final = 0.1
"""Weight of a new outcome in the running means of one sequence."""
_FIRST_EXPECTED: Final = 0.6
"""The chance of a draft token before any was drafted."""
_FIRST_WEIGHT: Final = 4
"""How many outcomes that counts for."""
_MOST_WEIGHT: Final = 50
"""The mean of later ones covers about this many outcomes."""
_PROBE_SHARE: Final = 0.01
"""Of the time, the most that probes lose."""
_FREE_PROBES: Final = 6
"""The first probes may cost what they like, and come before any plan: a worker makes them in its warm-up."""
_PROBED_DEPTHS: Final = (1, 7, 3, 5, 2, 4)
"""So many tokens are drafted in probes, in turns: steps of all these rows are measured."""
_STEPS_OFF: Final = 8
"""Where drafts don't pay, it is looked at again after so many steps: looking takes time too."""
_MOST_PROBED_ROWS: Final = 24
_PAUSE_S: Final = 0.1
"""About how long what a source lags behind is computed between two steps of the target."""
_LEAST_FOLLOWED: Final = 32
_LEAST_LEFT: Final = 64
"""An answer is expected to go on for as many tokens as it has, and at least this many."""
_FOLLOW_GAIN: Final = 1.25
"""By what factor the time that drafts are expected to save must exceed that of following the text."""
_FIRST_FOLLOWED: Final = 4
"""How many tokens are followed in the time of one draft step, until it is measured."""


_MOST_FIRST: Final = 3.0
"""A first token is not expected to take longer than so many later ones: one that did waited for something else."""
_COLD: Final = 2
"""So many first steps of a source say nothing: they touch its memory for the first time."""
_YOUNG: Final = 8
"""Of so many steps the fastest counts, later the mean."""


class DraftCost:
    """Seconds per step of a source, by sequences."""

    __slots__ = ("_cost", "_count")

    def __init__(self) -> None:
        self._cost = StepCost()
        self._count = 0

    def seconds(self, sequences: int, prior_s: float) -> float:
        """prior_s: of one sequence, before any was measured."""
        seconds = self._cost.seconds(sequences)
        return seconds if self._count > _COLD else seconds * prior_s

    def record(self, sequences: int, seconds: float) -> None:
        self._count += 1
        if self._count <= _COLD:
            return
        if self._count <= _YOUNG and seconds < self._cost.seconds(sequences):
            self._cost = StepCost()
        if self._count > _YOUNG or self._count == _COLD + 1 or seconds < self._cost.seconds(sequences):
            self._cost.record(sequences, seconds)


class Expected:
    """How often draft tokens of all texts were right, if those before them were."""

    __slots__ = ("_weight", "chance")

    def __init__(self) -> None:
        self.chance = _FIRST_EXPECTED
        self._weight = _FIRST_WEIGHT

    def learn(self, right: bool) -> None:
        self._weight = min(self._weight + 1, _MOST_WEIGHT)
        self.chance += (right - self.chance) / self._weight


class DraftRecord:
    """What is known of the drafts of one generation."""

    __slots__ = ("_bias", "drafts", "expected", "kind", "reach")

    def __init__(self, expected: float, kind: int) -> None:
        self.kind = kind
        self.expected = expected
        """The chance that its next draft token will be right, if those before it are: learned from earlier ones."""
        self.drafts: list[tuple[DraftToken, float]] = []
        """The tokens drafted for this step, each with the chance that it is right, if those before it are."""
        self.reach = 1.0
        """The chance that all of them are right."""
        self._bias = 0.0

    def begin(self) -> None:
        self.drafts = []
        self.reach = 1.0

    def add(self, drafted: DraftToken, general: float) -> None:
        """general: the chance of such a token in all texts."""
        chance = min(max(general + self._bias, 0.01), 0.995)
        self.drafts.append((drafted, chance))
        self.reach *= chance
        self.expected += _RATE * (chance - self.expected)

    def chances(self) -> list[float]:
        """For each draft token, the chance that it and all before it are right."""
        chances, reach = [], 1.0
        for _, chance in self.drafts:
            reach *= chance
            chances.append(reach)
        return chances

    def learn(self, chance: float, right: bool) -> None:
        self._bias += _RATE * ((right - chance) - self._bias)


class ModelDrafts:
    """Plans and makes the drafts of one source."""

    def __init__(self, source: DraftSource, target: StepCost) -> None:
        """target: what the target's steps take, which others keep up to date."""
        self.source = source
        self._target = target
        self._costs = DraftCost(), DraftCost()  # of a first token, which has the text's last ones to read; of others
        self._followed_s = 0.0  # per token; 0: not measured
        # Of greedy texts and of sampled ones, and of the same in a grammar.
        self._chances = [DraftChances() for _ in range(4)]
        self._expected = [Expected() for _ in range(4)]
        self._credit_s = 0.0  # for probes
        self._rate = 0.0  # tokens per second that the plan predicts
        self._records: dict[SequenceState, DraftRecord] = {}
        self._lagging: list[Generation] = []
        self._probe: Generation | None = None  # to follow, so that it can be drafted for
        self._probes = 0
        self._off = 0, 0  # steps until it is planned again, while so many rows are beside
        self._probed_s: float | None = None  # what this step would take without its probe; None: it has none
        self._spent_s = 0.0
        self.most_tokens = source.most_tokens
        """The most tokens to draft for a sequence in this step."""
        self.drafted: list[Generation] = []
        """Generations with drafts in this step, whether they are computed or not."""

    def begin_step(self, running: Sequence[SequenceState]) -> None:
        """Forgets the plan of the step before, and sequences that don't run any more."""
        self._lagging, self._probe, self.drafted = [], None, []
        self._probed_s, self.most_tokens = None, self.source.most_tokens
        self.source.keep_only(running)
        if len(self._records) > len(running):
            self._records = {sequence: self._records[sequence] for sequence in running if sequence in self._records}

    @property
    def is_probe(self) -> bool:
        """Whether all that is drafted in this step is to be computed, whether it pays or not."""
        return self._probed_s is not None

    @property
    def has_plan(self) -> bool:
        """Whether there is something to compute before the target's step, beside what was planned to be drafted."""
        return bool(self._lagging) or self._probe is not None

    def plan(self, able: Mapping[Generation, Sequence[float]], rows: int) -> list[Generation]:
        """Returns the generations for which tokens are to be drafted in this step, which has `rows` other rows.

        able: those that may have drafts, with the chances of the lookup's tokens, which are free.
        """
        steps, beside = self._off
        if steps and beside == rows:
            self._off = steps - 1, rows
            self._credit_s += _PROBE_SHARE * self._target.seconds(rows)
            return []
        lags = [(lag, generation) for generation in able if (lag := self.source.lag(generation)) is not None]
        ready = [generation for lag, generation in lags if not lag]
        behind = sorted(((lag, g) for lag, g in lags if lag), key=lambda pair: pair[0])
        base = rows / self._target.seconds(rows)
        chosen = [generation for generation in ready if self._beats_lookup(generation, able[generation], rows, base)]
        depth, self._rate = self._depth(chosen, rows)
        if lags and self._probes < _FREE_PROBES:
            return self._plan_probe(ready, behind, rows)
        if behind:
            self._plan_to_follow(chosen, behind, rows, base)
        if depth:
            self._credit_s = 0.0
            return chosen
        probed = [] if self._lagging or not lags else self._plan_probe(ready, behind, rows)
        if not self._lagging and not probed and self._probe is None:
            self._off = _STEPS_OFF - 1, rows
        return probed

    def _depth(self, drafted: Sequence[Generation], rows: int) -> tuple[int, float]:
        """How many tokens deep drafts for all of them at once give the most tokens per second, and how many those are.

        0 deep, unless they give at least LEAST_GAIN as many as none.
        """
        tokens = float(rows)
        depth, best = 0, LEAST_GAIN * tokens / self._target.seconds(rows)
        expected = [self._record(generation).expected for generation in drafted]
        reached = [1.0] * len(drafted)
        for deep in range(1, self.source.most_tokens + 1 if drafted else 0):
            reached = [reach * chance for reach, chance in zip(reached, expected, strict=True)]
            tokens += sum(reached)
            seconds = self._target.seconds(rows + deep * len(drafted)) + self._draft_s(len(drafted), deep)
            if tokens / seconds > best:
                depth, best = deep, tokens / seconds
        return depth, best

    def _beats_lookup(self, generation: Generation, looked_up: Sequence[float], rows: int, base: float) -> bool:
        """Whether drafts gain more for it than the lookup's tokens. base: tokens per second without either."""
        if not looked_up:
            return True
        alone = self._target.seconds(rows)
        gained, lookup = 0.0, 0.0
        for count, chance in enumerate(looked_up, start=1):
            gained += chance
            lookup = max(lookup, gained - base * (self._target.seconds(rows + count) - alone))
        gained, drafts, reach = 0.0, 0.0, 1.0
        expected = self._record(generation).expected
        for count in range(1, self.source.most_tokens + 1):
            reach *= expected
            gained += reach
            seconds = self._target.seconds(rows + count) - alone + self._draft_s(1, count)
            drafts = max(drafts, gained - base * seconds)
        return drafts > lookup

    def _plan_to_follow(
        self, drafted: Sequence[Generation], behind: Sequence[tuple[int, Generation]], rows: int, base: float
    ) -> None:
        """Plans to compute what the source lags behind, if drafts are expected to save more time than that takes."""
        for count in range(len(behind), 0, -1):
            some = [generation for _, generation in behind[:count]]
            _, rate = self._depth([*drafted, *some], rows)
            if self._rate >= rate:
                continue
            left = min(max(_LEAST_LEFT, g.sequence.generated) for g in some)
            left = min(left, min(g.sequence.end_length - g.sequence.length for g in some))
            before = max(base, self._rate if drafted else 0.0)
            saved_s = left * rows * (1 / before - 1 / rate)
            if saved_s > _FOLLOW_GAIN * sum(lag for lag, _ in behind[:count]) * self._follow_s():
                self._lagging = some
                return

    def _plan_probe(
        self, ready: list[Generation], behind: Sequence[tuple[int, Generation]], rows: int
    ) -> list[Generation]:
        """Plans a probe, if it can lose no more than a small share of the time since the last one."""
        base_s = self._target.seconds(rows)
        self._credit_s += _PROBE_SHARE * base_s
        is_free = self._probes < _FREE_PROBES
        if behind and (is_free or not ready):
            lag, generation = behind[0]
            if is_free or self._credit_s >= lag * self._follow_s():
                self._probe = generation
            return []
        deep = _PROBED_DEPTHS[self._probes % len(_PROBED_DEPTHS)]
        deep = min(deep, self.source.most_tokens, max(1, (_MOST_PROBED_ROWS - rows) // len(ready)))
        drafted_s = self._draft_s(len(ready), deep)
        if not is_free and self._credit_s < drafted_s + self._target.seconds(rows + deep * len(ready)) - base_s:
            return []
        self._probes += 1
        self._probed_s, self.most_tokens = base_s, deep
        return ready

    def computed(self, seconds: float, sampled: Mapping[SequenceState, Sequence[int]]) -> None:
        """Learns from a step of the target that took `seconds`, and from what was sampled in it."""
        self._learn(sampled)
        if self._probed_s is None:
            return
        tokens = sum(map(len, sampled.values()))
        lost_s = self._spent_s + seconds - self._probed_s * tokens / max(len(sampled), 1)
        self._credit_s = min(self._credit_s, 0.0) - max(lost_s, 0.0)

    def run(self, allowed: Mapping[Generation, int], rows: int) -> float:
        """Drafts what was planned, and returns the seconds that it took.

        allowed: the most tokens for each generation. rows: those of the target's step without them.
        """
        if self._probe is not None:
            self._credit_s -= self._follow([self._probe])
        self._follow(self._lagging)
        self._spent_s = self._draft(allowed, rows)
        return self._spent_s

    def _follow(self, generations: Sequence[Generation]) -> float:
        began_s = time.perf_counter()
        end_s = began_s + _PAUSE_S
        for generation in generations:
            while (lag := self.source.lag(generation)) and (now_s := time.perf_counter()) < end_s:
                most = max(int((end_s - now_s) / self._follow_s()), _LEAST_FOLLOWED)
                count = min(lag, most, 512)
                self.source.follow(generation, count)
                taken = (time.perf_counter() - now_s) / count
                if count >= _LEAST_FOLLOWED:
                    self._followed_s += (taken - self._followed_s) * (0.3 if self._followed_s else 1.0)
        return time.perf_counter() - began_s

    def _draft(self, allowed: Mapping[Generation, int], rows: int) -> float:
        began_s = time.perf_counter()
        going = [generation for generation, most in allowed.items() if most > 0]
        for generation in going:
            generation.draft_tokens = []
            self._record(generation).begin()
        while going:
            before_s = time.perf_counter()
            drafted = self.source.draft(going)
            is_first = not going[0].draft_tokens
            self._costs[not is_first].record(len(going), time.perf_counter() - before_s)
            more = []
            for generation, token in zip(going, drafted, strict=True):
                tokens = [*generation.draft_tokens, *(() if token is None else (token.token,))]
                if token is None or generation.free(tokens) < len(tokens):
                    if not generation.draft_tokens:  # nothing came of it
                        self._record(generation).expected *= 1 - _RATE
                    continue
                generation.draft_tokens = tokens
                record = self._record(generation)
                record.add(token, self._chances[record.kind].of(token.probability))
                rows += 1
                if len(record.drafts) == 1:
                    self.drafted.append(generation)
                is_last = token.token in generation.request.stop_token_ids
                if len(record.drafts) < allowed[generation] and not is_last:
                    more.append(generation)
            going = more if self.is_probe else self._worth_more(more, rows)
        return time.perf_counter() - began_s

    def _worth_more(self, generations: list[Generation], rows: int) -> list[Generation]:
        """Those for which one more token is worth its time: the planned rate of tokens at least."""
        records = [(self._record(g).reach * self._record(g).expected, g) for g in generations]
        records.sort(key=lambda pair: -pair[0])
        before_s, gained, best, most = self._target.seconds(rows), 0.0, 0.0, 0
        for count, (chance, _) in enumerate(records, start=1):
            gained += chance
            seconds = self._more_s(count) + self._target.seconds(rows + count) - before_s
            if gained - self._rate * seconds > best:
                best, most = gained - self._rate * seconds, count
        return [generation for _, generation in records[:most]]

    def chances(self, generation: Generation) -> list[float]:
        """For each token drafted for it in this step, the chance that it and all before it are right."""
        return self._record(generation).chances() if generation in self.drafted else []

    def _learn(self, sampled: Mapping[SequenceState, Sequence[int]]) -> None:
        """Compares the drafts, computed or not, with the sampled tokens, up to the first wrong one."""
        for generation in self.drafted:
            record = self._record(generation)
            for (drafted, chance), token in zip(record.drafts, sampled.get(generation.sequence, ()), strict=False):
                right = drafted.token == token
                self._chances[record.kind].learn(drafted.probability, right)
                record.learn(chance, right)
                self._expected[record.kind].learn(right)
                if not right:
                    break

    def _record(self, generation: Generation) -> DraftRecord:
        record = self._records.get(generation.sequence)
        if record is None:
            kind = 2 * (generation.constraint is not None) + (generation.request.sampling.temperature > 0)
            record = self._records[generation.sequence] = DraftRecord(self._expected[kind].chance, kind)
        return record

    def _draft_s(self, sequences: int, deep: int) -> float:
        """The expected time of drafting so many tokens for each of the sequences."""
        prior_s = self.source.cost_share * self._target.seconds(1)
        first_s, more_s = self._costs[0].seconds(sequences, prior_s), self._more_s(sequences)
        return min(first_s, _MOST_FIRST * more_s) + (deep - 1) * more_s

    def _more_s(self, sequences: int) -> float:
        """The expected time of a draft token that is not the first one, for each of the sequences."""
        prior_s = self.source.cost_share * self._target.seconds(1)
        return self._costs[1].seconds(sequences, min(prior_s, self._costs[0].seconds(1, prior_s)))

    def _follow_s(self) -> float:
        return self._followed_s or self._draft_s(1, 1) / _FIRST_FOLLOWED
