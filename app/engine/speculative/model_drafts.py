"""Decides by time how many tokens a model drafts (draft_source.py), and has them drafted.

A draft costs time of its own, and each draft token a row of the target's step. Both are measured by rows, and how often
drafts are right is learned (draft_chances.py). Drafting is planned where that predicts more tokens per second, and goes
on for each sequence as long as its next token is worth its time. Where it does not pay, there are drafts now and then
all the same, which lose a small share of the time, to notice when it would: probes (probe_budget.py).

A source may have to follow a text before it can draft for it. That is done beside the steps that compute the text's own
prompt, and later between steps, in a share of their time, if the answer is expected to be long enough.

Knows neither pages nor how tokens are drafted.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from app.engine.generation import Generation
from app.engine.scheduling.sequence import SequenceState
from app.engine.speculative.draft_chances import DraftChances
from app.engine.speculative.draft_source import DraftSource, DraftToken
from app.engine.speculative.probe_budget import MOST, ProbeBudget
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
_FREE_PROBES: Final = 6
"""The first probes may cost what they like, and come before any plan: a worker makes them in its warm-up."""
_PROBED_DEPTHS: Final = (1, 7, 3, 5, 2, 4)
"""So many tokens are drafted in probes, in turns: steps of all these rows are measured."""
_MOST_IN_A_ROW: Final = 100
"""After so many steps with drafts there is one without, which tells whether all steps got slower or only these."""
_NEXT_IN_A_ROW: Final = 8
"""As many if that one was much faster than expected."""
_EXPLORE_SHARE: Final = 0.03
"""Of the time that drafts are expected to save, how much may be lost with one token more than is worth its time. Else
rows that once took long would be thought to take long for ever."""
_MOST_EXPLORED: Final = 2.0
"""The most that is saved up for that, in steps' times."""
_STEPS_OFF: Final = 8
"""Where drafts don't pay, it is looked at again after so many steps: looking takes time too."""
_MOST_PROBED_ROWS: Final = 24
_FIRST_PAUSE_S: Final = 0.1
"""About how long the first probes follow a text between two steps."""
_FOLLOW_SHARE: Final = 0.1
"""Of the time of steps, how long texts are followed beside them."""
_LEAST_FOLLOWED: Final = 32
"""Fewer tokens at a time are only followed if they are the last ones: each step reads all weights."""
_MOST_FOLLOWED: Final = 512
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
    """The time of a source's steps by sequences, as a share of the target's of one row: a busy machine slows both."""

    __slots__ = ("_cost", "_count")

    def __init__(self) -> None:
        self._cost = StepCost()
        self._count = 0

    def share(self, sequences: int, prior: float) -> float:
        """prior: of one sequence, before any was measured."""
        share = self._cost.seconds(sequences)
        return share if self._count > _COLD else share * prior

    def record(self, sequences: int, share: float) -> None:
        self._count += 1
        if self._count <= _COLD:
            return
        if self._count <= _YOUNG:
            if self._count > _COLD + 1 and share >= self._cost.seconds(sequences):
                return
            self._cost = StepCost()
        self._cost.record(sequences, share)


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

    def __init__(
        self,
        source: DraftSource,
        target: StepCost,
        expected_tokens: Callable[[SequenceState], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Has drafted nothing yet.

        target: what the target's steps take, which others keep up to date. expected_tokens: how many more an answer is
        expected to have. clock: in seconds.
        """
        self.source = source
        self._target = target
        self._expected_tokens = expected_tokens
        self._clock = clock
        self._costs = DraftCost(), DraftCost()  # of a first token, which has the text's last ones to read; of others
        self._followed = 0.0  # time per token, relative as DraftCost; 0: not measured
        self._follow_s_left = 0.0  # for following beside steps in which nothing but answers is computed
        self._prompt_s_left = 0.0  # for following beside steps with prompts; 0: none was measured
        self.forget_chances()
        self._budget = ProbeBudget()
        self._rate = 0.0  # tokens per second that the plan predicts
        self._records: dict[SequenceState, DraftRecord] = {}
        self._lagging: list[Generation] = []
        self._probe: Generation | None = None  # to follow, so that it can be drafted for
        self._probes = 0  # in which something was drafted
        self._in_a_row = 0  # plans to draft
        self._explore_s = 0.0  # what may be lost with one token more
        self._explore_more_s = 0.0  # what this step adds to that, if it drafts
        self.has_explored = False
        """Whether one token more than pays is to be computed in this step."""
        self._undrafted_s = 0.0  # what this step is expected to take, if nothing is drafted after many such plans
        self._probed_s: float | None = None  # what this step would take without its probe; None: it has none
        self._spent_s = 0.0
        self.most_tokens = source.most_tokens
        """The most tokens to draft for a sequence in this step."""
        self.drafted: list[Generation] = []
        """Generations with drafts in this step, whether they are computed or not."""

    def begin_step(self) -> None:
        """Forgets the plan of the step before."""
        if self._probed_s is not None:  # the target's step was interrupted: nothing was learned
            self._budget.spend(self._spent_s)
        self._lagging, self._probe, self.drafted = [], None, []
        self._probed_s, self._spent_s, self.most_tokens = None, 0.0, self.source.most_tokens
        self._undrafted_s = 0.0
        self._explore_more_s, self.has_explored = 0.0, False

    def forget(self, sequence: SequenceState) -> None:
        """Forgets a sequence that has ended or was preempted."""
        self._records.pop(sequence, None)

    def forget_chances(self) -> None:
        """Forgets how often drafts were right, as after a warm-up, whose texts are random. Step times stay known."""
        self._off = 0, 0  # steps until it is planned again, while so many rows are beside
        # Of greedy texts and of sampled ones, and of the same in a grammar.
        self._chances = [DraftChances() for _ in range(4)]
        self._expected = [Expected() for _ in range(4)]

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
            return []
        ready, behind = self._lags(able)
        base = rows / self._target.seconds(rows)
        chosen = [generation for generation in ready if self._beats_lookup(generation, able[generation], rows, base)]
        depth, self._rate = self._depth(chosen, rows)
        if depth and self._in_a_row >= _MOST_IN_A_ROW:
            self._in_a_row, self._undrafted_s = 0, self._target.seconds(rows)
            return []
        self._in_a_row = self._in_a_row + 1 if depth else 0
        if (ready or behind) and self._probes < _FREE_PROBES:
            return self._plan_probe(ready, behind, rows)
        if behind:
            self._plan_to_follow(chosen, behind, rows, is_prompt=False)
        if depth:
            self._explore_more_s = _EXPLORE_SHARE * (self._rate / base - 1) * self._target.seconds(rows)
            return chosen
        probed = [] if self._lagging or not (ready or behind) else self._plan_probe(ready, behind, rows)
        if not self._lagging and not probed and self._probe is None:
            self._off = _STEPS_OFF - 1, rows
        return probed

    def plan_beside_prompts(self, generations: Iterable[Generation], rows: int) -> None:
        """Plans to follow texts beside a step that computes prompts, after which there will be `rows` rows."""
        self._lagging, self._probe = [], None
        ready, behind = self._lags(generations)
        _, self._rate = self._depth(ready, rows)
        if behind and self._prompt_s_left:
            self._plan_to_follow(ready, behind, rows, is_prompt=True)

    def _lags(self, generations: Iterable[Generation]) -> tuple[list[Generation], list[tuple[int, Generation]]]:
        """Returns those that can be drafted for, and those that must be followed first, by how many tokens."""
        lags = [(lag, generation) for generation in generations if (lag := self.source.lag(generation)) is not None]
        ready = [generation for lag, generation in lags if not lag]
        return ready, sorted(((lag, one) for lag, one in lags if lag), key=lambda pair: pair[0])

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
        self, drafted: Sequence[Generation], behind: Sequence[tuple[int, Generation]], rows: int, *, is_prompt: bool
    ) -> None:
        """Plans to compute what the source lags behind, if drafts are expected to save more time than that takes."""
        base_s = self._target.seconds(rows)
        for count in range(len(behind), 0, -1):
            some = [generation for _, generation in behind[:count]]
            _, rate = self._depth([*drafted, *some], rows)
            if self._rate >= rate:
                continue
            cost_s = sum(lag for lag, _ in behind[:count]) * self._follow_s()
            left = float(min(self._tokens_left(generation) for generation in some))
            if not is_prompt:  # the answers go on meanwhile
                left -= cost_s / (_FOLLOW_SHARE * base_s)
            before = max(rows / base_s, self._rate if drafted else 0.0)
            if left * rows * (1 / before - 1 / rate) > _FOLLOW_GAIN * cost_s:
                self._lagging = some
                return

    def _tokens_left(self, generation: Generation) -> int:
        sequence = generation.sequence
        return min(self._expected_tokens(sequence), sequence.end_length - sequence.length)

    def _plan_probe(
        self, ready: list[Generation], behind: Sequence[tuple[int, Generation]], rows: int
    ) -> list[Generation]:
        """Plans a probe, if it can lose no more than a small share of the time since the last one."""
        base_s = self._target.seconds(rows)
        is_free = self._probes < _FREE_PROBES
        if behind and (is_free or not ready):
            lag, generation = behind[0]
            if is_free or self._budget.allows_reading(lag * self._follow_s()):
                self._probe = generation
            return []
        deep = _PROBED_DEPTHS[self._probes % len(_PROBED_DEPTHS)]
        deep = min(deep, self.source.most_tokens, max(1, (_MOST_PROBED_ROWS - rows) // len(ready)))
        while deep > 1 and self._probe_s(len(ready), deep, rows) > MOST * base_s:
            deep -= 1  # there would never be time for it
        if not is_free and not self._budget.allows(self._probe_s(len(ready), deep, rows), base_s):
            return []
        self._probed_s, self.most_tokens = base_s, deep
        return ready

    def _probe_s(self, sequences: int, deep: int, rows: int) -> float:
        """What a probe is expected to lose if all of its drafts are wrong."""
        more_s = self._target.seconds(rows + deep * sequences) - self._target.seconds(rows)
        return self._draft_s(sequences, deep) + more_s

    def computed(self, seconds: float, sampled: Mapping[SequenceState, Sequence[int]], *, is_prompt: bool) -> None:
        """Learns from a step of the target that took `seconds`, and from what was sampled in it.

        is_prompt: whether it computed tokens of a prompt.
        """
        self._learn(sampled)
        if is_prompt:
            self._prompt_s_left = min(self._prompt_s_left, self._least_follow_s()) + _FOLLOW_SHARE * seconds
            return
        if not sampled:
            return
        if self.drafted:
            most_s = _MOST_EXPLORED * self._target.seconds(len(sampled))
            self._explore_s = min(self._explore_s + self._explore_more_s, most_s)
        if seconds < 0.8 * self._undrafted_s:
            self._in_a_row = _MOST_IN_A_ROW - _NEXT_IN_A_ROW
        if self._probed_s is not None:
            # At least what such steps take: a faster machine pays for nothing.
            rows = len(sampled) + sum(len(self._record(generation).drafts) for generation in self.drafted)
            answers = sum(map(len, sampled.values())) / len(sampled)
            taken_s = self._spent_s + max(seconds, self._target.seconds(rows))
            self._budget.spend(max(taken_s - self._probed_s * answers, 0.0))
            self._spent_s = 0.0
        step_s = self._target.seconds(len(sampled))
        self._budget.stepped(step_s)
        more_s = _FOLLOW_SHARE * step_s
        self._follow_s_left = min(self._follow_s_left, self._least_follow_s()) + more_s

    def run(self, allowed: Mapping[Generation, int], rows: int) -> float:
        """Drafts what was planned, and returns the seconds that it took.

        allowed: the most tokens for each generation. rows: those of the target's step without them.
        """
        if self._probe is not None:
            least_s = self._least_follow_s()
            if self._probes < _FREE_PROBES:
                self._budget.spend(self._follow([self._probe], max(_FIRST_PAUSE_S, least_s)))
            else:  # a step takes about twice as long, until the text is read
                taken_s = self._follow([self._probe], max(self._target.seconds(rows), least_s))
                runs = self._probe.sequence.slot >= 0  # one that was preempted must get nothing of the source
                self._budget.spend_reading(taken_s, is_done=runs and not self.source.lag(self._probe))
        if self._lagging:
            self._follow_s_left -= self._follow(self._lagging, self._follow_s_left)
        self._spent_s = self._draft(allowed, rows)
        return self._spent_s

    def run_beside_prompts(self) -> None:
        """Follows texts as planned, before a step that computes prompts."""
        self._prompt_s_left -= self._follow(self._lagging, self._prompt_s_left)

    def _follow(self, generations: Sequence[Generation], most_s: float) -> float:
        """Follows texts for about `most_s` seconds. Returns the seconds that it took."""
        began_s = now_s = self._clock()
        for generation in generations:
            while generation.sequence.slot >= 0 and (lag := self.source.lag(generation)):
                able = int((most_s - (now_s - began_s)) / self._follow_s())
                if able < min(lag, _LEAST_FOLLOWED):
                    return now_s - began_s
                count = min(lag, _MOST_FOLLOWED, able)
                self.source.follow(generation, count)
                before_s, now_s = now_s, self._clock()
                if self.source.lag(generation) == lag:  # it can't
                    break
                # Before the first probe neither memory is warm nor the target's time known.
                if count >= _LEAST_FOLLOWED and self._probes:
                    taken = (now_s - before_s) / count / self._target.one_row_s
                    self._followed += (taken - self._followed) * (0.3 if self._followed else 1.0)
        return now_s - began_s

    def _draft(self, allowed: Mapping[Generation, int], rows: int) -> float:
        began_s = self._clock()
        going = [generation for generation, most in allowed.items() if most > 0]
        for generation in going:
            generation.draft_tokens = []
            self._record(generation).begin()
        if going and self.is_probe:
            self._probes += 1
        while going:
            before_s = self._clock()
            drafted = self.source.draft(going)
            is_first = not going[0].draft_tokens
            self._costs[not is_first].record(len(going), (self._clock() - before_s) / self._target.one_row_s)
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
        return self._clock() - began_s

    def _worth_more(self, generations: list[Generation], rows: int) -> list[Generation]:
        """Those for which one more token is worth its time: the planned rate of tokens at least; or one, to explore."""
        if self.has_explored:
            return []
        records = [(self._record(g).reach * self._record(g).expected, g) for g in generations]
        records.sort(key=lambda pair: -pair[0])
        before_s, gained, best, most = self._target.seconds(rows), 0.0, 0.0, 0
        for count, (chance, _) in enumerate(records, start=1):
            gained += chance
            seconds = self._more_s(count) + self._target.seconds(rows + count) - before_s
            if gained - self._rate * seconds > best:
                best, most = gained - self._rate * seconds, count
        if records and not most:
            lost_s = self._more_s(1) + self._target.seconds(rows + 1) - before_s - records[0][0] / self._rate
            if lost_s <= self._explore_s:
                self._explore_s -= lost_s
                most, self.has_explored = 1, True
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
        first = self._costs[0].share(sequences, self.source.cost_share)
        more_s = self._more_s(sequences)
        return min(first * self._target.one_row_s, _MOST_FIRST * more_s) + (deep - 1) * more_s

    def _more_s(self, sequences: int) -> float:
        """The expected time of a draft token that is not the first one, for each of the sequences."""
        prior = self.source.cost_share
        return self._target.one_row_s * self._costs[1].share(sequences, min(prior, self._costs[0].share(1, prior)))

    def _least_follow_s(self) -> float:
        """What following as few tokens as possible takes."""
        return 1.01 * _LEAST_FOLLOWED * self._follow_s()

    def _follow_s(self) -> float:
        return self._followed * self._target.one_row_s or self._draft_s(1, 1) / _FIRST_FOLLOWED
