"""Speculative decoding: drafts from the text itself or by a model, where that raises the throughput.

An output often repeats its prompt, or itself (drafter.py), and a small model often knows how it goes on
(draft_source.py). The model computes a token and the draft after it in one step. The sampler samples at each position
as it would without a draft, and only the tokens up to the first wrong draft token are accepted. So outputs are the same
with and without speculation, sampled ones too.

Each draft token costs a row of the step, and a model's draft time of its own. Step times by rows are learned as steps
run (step_cost.py), and acceptance rates from each request's own text, also while no draft is computed. Draft tokens are
computed only where both together predict more tokens per second.

Knows neither pages nor the model.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from app.engine.expert_reads import ExpertReads
from app.engine.generation import Generation
from app.engine.model_runner import Batch
from app.engine.scheduling.sequence import SequenceState, Step
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.model_drafts import LEAST_GAIN, ModelDrafts
from app.engine.speculative.step_cost import StepCost

logger = logging.getLogger(__name__)

MAX_RUNNING = 16
"""With more running sequences than this, nothing is drafted: their rows already fill the kernels."""
LOOKUP = "lookup"
"""The kind of drafts from the text itself."""


@dataclass(slots=True)
class DraftCounts:
    """Draft tokens of one kind, since the start."""

    drafted: int = 0
    """Those that were computed."""
    accepted: int = 0


class Speculation:
    """Decides which draft tokens to compute in a step, and afterwards accepts the right ones."""

    def __init__(
        self,
        guess_tokens: int,
        experts: ExpertReads | None = None,
        source: DraftSource | None = None,
        expected_tokens: Callable[[SequenceState], int] = lambda sequence: max(64, sequence.generated),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`guess_tokens`: the most that are looked up per sequence and step. `experts`: None if the model has none.

        source: drafts with a model; None: drafts are only looked up. expected_tokens: how many more an answer is
        expected to have. clock: in seconds.
        """
        self._most = guess_tokens
        self._cost = StepCost(experts)
        self._source = source
        self._forgets = True
        self._model = None if source is None else ModelDrafts(source, self._cost, expected_tokens, clock)
        self._paused: set[SequenceState] = set()
        self._looked_up: list[Generation] = []  # with a lookup's draft in this step, whether it is computed or not
        self._planned: list[Generation] = []  # for which the model drafts
        self._seconds = 0.0
        self._kind = LOOKUP if source is None else source.kind
        self._counts = {kind: DraftCounts() for kind in (LOOKUP, self._kind)}

    @property
    def has_failed(self) -> bool:
        """Whether the model that drafts was given up."""
        return self._source is not None and self._model is None

    @property
    def looks_on(self) -> bool:
        """Whether `accept` must see this step."""
        return self._model is not None or bool(self._looked_up)

    def draft(
        self, running: Sequence[SequenceState], generations: Mapping[SequenceState, Generation], spare: int
    ) -> None:
        """Sets `draft_tokens` of the generations and `drafts` of their sequences, at most `spare` tokens in all.

        Where a model drafts, `drafts` is the most, and `fill` sets the tokens once the step is made.
        """
        for generation in (*self._looked_up, *self._planned):
            generation.sequence.drafts = 0
        self._looked_up, self._planned = [], []
        if self._model is not None:
            self._model.begin_step()
        if len(running) > MAX_RUNNING:
            return
        looked_up: dict[Generation, list[float]] = {}
        able: dict[Generation, list[float]] = {}
        rooms: dict[Generation, int] = {}
        for sequence in running:
            generation = generations[sequence]
            room = sequence.end_length - sequence.length - 1
            if not generation.may_draft or room < 1 or sequence.length - sequence.computed != 1:
                continue
            chances = self._look_up(generation, room)
            if chances is not None:
                self._looked_up.append(generation)
                looked_up[generation] = chances
            able[generation] = chances or []
            rooms[generation] = room
        if self._model is not None and all(sequence.length - sequence.computed == 1 for sequence in running):
            with self._given_up_if_it_fails():
                self._planned = self._model.plan(able, len(running))
        for generation in self._planned:
            looked_up.pop(generation, None)
        rows = len(running)
        likely = [(chance, generation.sequence) for generation, of_it in looked_up.items() for chance in of_it]
        likely.sort(key=lambda pair: -pair[0])
        chances = [chance for chance, _ in likely[: max(spare, 0)]]
        for _, sequence in likely[: self._paying(chances, rows)]:
            sequence.drafts += 1
            spare -= 1
        if (model := self._model) is not None:
            for number, generation in enumerate(self._planned):
                fair = spare // (len(self._planned) - number)
                most = max(min(model.most_tokens, rooms[generation], fair), 0)
                generation.sequence.drafts = most
                spare -= most

    def _look_up(self, generation: Generation, room: int) -> list[float] | None:
        """Sets the generation's `draft_tokens` from its text, and returns their chances; None: there are none."""
        if generation.drafter is None:
            return None
        generation.draft_tokens = generation.drafter.look_up(min(self._most, room))
        del generation.draft_tokens[generation.free(generation.draft_tokens) :]
        if not generation.draft_tokens:
            return None
        return generation.drafter.chances()[: len(generation.draft_tokens)]

    def fills(self, step: Step, generations: Mapping[SequenceState, Generation]) -> bool:
        """Whether `fill` may have something to compute; plans what is followed beside the step's prompts."""
        if (model := self._model) is not None and step.prompts and len(step.sequences) <= MAX_RUNNING:
            with self._given_up_if_it_fails():
                self._plan_beside_prompts(model, step, generations)
        if self._model is None:
            return bool(self._planned)
        return bool(step.sequences) and (bool(self._planned) or self._model.has_plan)

    def fill(self, step: Step) -> None:
        """Drafts with the model for a step that is made, and leaves out of the step what is not worth its row."""
        if (model := self._model) is not None:
            with self._given_up_if_it_fails():
                if step.prompts:
                    model.run_beside_prompts()
                self._fill(model, step)
        if self._model is None:
            planned = {generation.sequence for generation in self._planned}
            for index, sequence in enumerate(step.sequences):
                if sequence in planned:
                    step.query_lengths[index] = 1
            for sequence in planned:  # also of those that the step leaves out
                sequence.drafts = 0
            self._planned = []

    @staticmethod
    def _plan_beside_prompts(model: ModelDrafts, step: Step, generations: Mapping[SequenceState, Generation]) -> None:
        able = [
            generations[sequence]
            for sequence in step.sequences
            if generations[sequence].may_draft and sequence.end_length - sequence.length > 1
        ]
        model.plan_beside_prompts(able, len(step.sequences))

    def _fill(self, model: ModelDrafts, step: Step) -> None:
        places = {sequence: index for index, sequence in enumerate(step.sequences)}
        allowed = {
            generation: step.query_lengths[places[generation.sequence]] - 1
            for generation in self._planned
            if generation.sequence in places and generation.sequence.length - generation.sequence.computed == 1
        }
        rows = sum(step.query_lengths) - sum(allowed.values())
        spent_s = 0.0 if step.prompts else model.run(allowed, rows)
        likely = [(chance, generation) for generation in allowed for chance in model.chances(generation)]
        likely.sort(key=lambda pair: -pair[0])
        for generation in allowed:
            step.query_lengths[places[generation.sequence]] = 1
        paying = self._paying([chance for chance, _ in likely], rows, spent_s)
        most = len(likely) if model.is_probe else min(paying + model.has_explored, len(likely))
        for _, generation in likely[:most]:
            step.query_lengths[places[generation.sequence]] += 1

    @contextmanager
    def _given_up_if_it_fails(self) -> Iterator[None]:
        """After an error no model drafts any more; `fill` takes its drafts out of a step that was planned."""
        try:
            yield
        except Exception:
            logger.exception("drafting has failed: no model drafts any more until the worker starts again")
            self._model = None

    def forget(self, sequence: SequenceState) -> None:
        """Forgets a sequence that leaves its slot, which it still has: it has ended, or was preempted."""
        if self._model is not None:
            self._model.forget(sequence)
        if self._source is not None and self._forgets:
            self._forgets = False  # not asked again if it fails
            with self._given_up_if_it_fails():
                self._source.forget(sequence)
                self._forgets = True

    def pause(self, sequences: Sequence[SequenceState]) -> None:
        """Gives back what the source has of these, the only running ones that stand still, so that others can have it.

        Call it before the `draft` of each step.
        """
        if self._model is None or (not sequences and not self._paused):
            return
        with self._given_up_if_it_fails():
            for sequence in sequences:
                if sequence not in self._paused:
                    self._model.source.pause(sequence)
        self._paused = set(sequences)

    def forget_chances(self) -> None:
        """Forgets how often a model's drafts were right."""
        if self._model is not None:
            self._model.forget_chances()

    def clear(self, owner: str) -> None:
        """Removes what is cached of a user's texts, whose pages are saved (`MemoryGrant.owner`)."""
        if self._source is not None:
            with self._given_up_if_it_fails():
                self._source.clear(owner)

    def _paying(self, chances: Sequence[float], rows: int, spent_s: float | None = None) -> int:
        """How many draft tokens, sorted by falling probability, maximize tokens per second beside `rows` other rows.

        spent_s: how long they took to make, which can't be saved any more; None: nothing.
        """
        tokens = float(rows)
        gain = LEAST_GAIN if spent_s is None else 1.0
        spent = spent_s or 0.0
        most, best = 0, gain * tokens / (self._cost.seconds(rows) + spent)
        for count, chance in enumerate(chances, start=1):
            tokens += chance
            rate = tokens / (self._cost.seconds(rows + count) + spent)
            if rate > best:
                most, best = count, rate
        return most

    def record(self, step: Step, batch: Batch, seconds: float) -> None:
        """Learns from the time of a step in which all sequences decoded."""
        self._seconds = seconds
        rows, sequences = len(batch.token_ids), len(step.sequences)
        if sequences <= MAX_RUNNING:
            drafted = 0 if batch.draft_lengths is None else int(batch.draft_lengths.sum())
            if rows == sequences + drafted:
                self._cost.record(rows, seconds)

    def accept(self, step: Step, tokens: Sequence[int]) -> list[tuple[SequenceState, Sequence[int]]]:
        """Returns the new tokens of each sampled sequence; subtracts rejected ones from the step's `query_lengths`."""
        taken: list[tuple[SequenceState, Sequence[int]]] = []
        by_model = {generation.sequence for generation in self._planned}
        begin = 0
        for index, (sequence, count) in enumerate(zip(step.sequences, step.query_lengths, strict=True)):
            drafted = max(0, sequence.computed + count - sequence.length)
            places = tokens[begin : begin + 1 + drafted]
            begin += len(places)
            if drafted:
                if -1 in places:
                    places = places[: places.index(-1)]
                right = len(places) - 1
                step.query_lengths[index] -= drafted - right
                counts = self._counts[self._kind if sequence in by_model else LOOKUP]
                counts.drafted += drafted
                counts.accepted += right
            if step.samples[index]:
                taken.append((sequence, places))
        by_sequence = dict(taken)
        for generation in self._looked_up:
            assert generation.drafter is not None
            generation.drafter.learn(by_sequence.get(generation.sequence, ()))
        if self._model is not None:
            with self._given_up_if_it_fails():
                self._model.computed(self._seconds, by_sequence, is_prompt=bool(step.prompts))
        return taken

    def tokens(self) -> dict[str, tuple[int, int]]:
        """Draft tokens computed and accepted, by kind."""
        return {kind: (counts.drafted, counts.accepted) for kind, counts in self._counts.items()}

    def release_memory(self) -> None:
        """Gives the memory of drafts back; no sequence runs."""
        if self._source is not None:
            self._source.release_memory()
