"""Speculative decoding with draft tokens from the text itself, where that raises the throughput.

An output often repeats its prompt, or itself (drafter.py). The model computes a token and the draft after it in one
step. The sampler samples at each position as it would without a draft, and only the tokens up to the first wrong draft
token are accepted. So outputs are the same with and without speculation, sampled ones too.

Each draft token costs a row of the step. Step times by rows are learned as steps run (step_cost.py), and acceptance
rates from each request's own text, also while no draft is computed. Draft tokens are computed only where both together
predict more tokens per second.

Knows neither pages nor the model.
"""

from collections.abc import Mapping, Sequence

from app.engine.expert_reads import ExpertReads
from app.engine.generation import Generation
from app.engine.model_runner import Batch
from app.engine.scheduling.sequence import SequenceState, Step
from app.engine.speculative.step_cost import StepCost

MAX_RUNNING = 16
"""With more running sequences than this, nothing is drafted: their rows already fill the kernels."""
_LEAST_GAIN = 1.02
"""The predicted speedup that a draft must reach: step times are not known more exactly."""


class Speculation:
    """Decides which draft tokens to compute in a step, and afterwards accepts the right ones."""

    def __init__(self, guess_tokens: int, experts: ExpertReads | None = None) -> None:
        """`guess_tokens`: the most draft tokens per sequence and step. `experts`: None if the model has none."""
        self._most = guess_tokens
        self._cost = StepCost(experts)
        self.looked_up: list[Generation] = []
        """Generations with a draft in this step, whether it is computed or not."""
        self.drafted_tokens = 0
        """Draft tokens computed since the start."""
        self.accepted_tokens = 0
        """Draft tokens accepted since the start."""

    def draft(
        self, running: Sequence[SequenceState], generations: Mapping[SequenceState, Generation], spare: int
    ) -> None:
        """Sets `draft_tokens` of the generations and `drafts` of their sequences, at most `spare` tokens in all."""
        for generation in self.looked_up:
            generation.sequence.drafts = 0
        self.looked_up = []
        if len(running) > MAX_RUNNING:
            return
        likely: list[tuple[float, SequenceState]] = []
        for sequence in running:
            generation = generations[sequence]
            room = sequence.end_length - sequence.length - 1
            if generation.drafter is None or room < 1 or sequence.length - sequence.computed != 1:
                continue
            generation.draft_tokens = generation.drafter.look_up(min(self._most, room))
            if generation.thought is not None:  # the end of a thought can't replace tokens that the sampler has taken
                del generation.draft_tokens[generation.thought.free(generation.draft_tokens) :]
            if generation.draft_tokens:
                self.looked_up.append(generation)
                of_draft = generation.drafter.chances()[: len(generation.draft_tokens)]
                likely += [(chance, sequence) for chance in of_draft]
        likely.sort(key=lambda pair: -pair[0])
        chances = [chance for chance, _ in likely[: max(spare, 0)]]
        for _, sequence in likely[: self._paying(chances, len(running))]:
            sequence.drafts += 1

    def _paying(self, chances: Sequence[float], rows: int) -> int:
        """How many draft tokens, sorted by falling probability, maximize tokens per second beside `rows` other rows."""
        tokens = float(rows)
        most, best = 0, _LEAST_GAIN * tokens / self._cost.seconds(rows)
        for count, chance in enumerate(chances, start=1):
            tokens += chance
            rate = tokens / self._cost.seconds(rows + count)
            if rate > best:
                most, best = count, rate
        return most

    def record(self, step: Step, batch: Batch, seconds: float) -> None:
        """Learns from the time of a step in which all sequences decoded."""
        rows, sequences = len(batch.token_ids), len(step.sequences)
        if sequences <= MAX_RUNNING:
            drafted = 0 if batch.draft_lengths is None else int(batch.draft_lengths.sum())
            if rows == sequences + drafted:
                self._cost.record(rows, seconds)

    def accept(self, step: Step, tokens: Sequence[int]) -> list[tuple[SequenceState, Sequence[int]]]:
        """Returns the new tokens of each sampled sequence; subtracts rejected ones from the step's `query_lengths`."""
        taken: list[tuple[SequenceState, Sequence[int]]] = []
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
                self.drafted_tokens += drafted
                self.accepted_tokens += right
            if step.samples[index]:
                taken.append((sequence, places))
        by_sequence = dict(taken)
        for generation in self.looked_up:
            assert generation.drafter is not None
            generation.drafter.learn(by_sequence.get(generation.sequence, ()))
        return taken
