"""Drafts by the target's own layer of multi-token prediction, or by an EAGLE-3 head, which is loaded with the target.

A step of the target has computed all that they need (kernels/step/predictor.h), so there is nothing to follow and
nothing to roll back. Knows neither when drafts pay nor what becomes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.engine.generation import Generation
from app.engine.model_runner import ModelRunner, TokenSampler
from app.engine.scheduling.sequence import SequenceState
from app.engine.speculative.draft_source import DraftToken
from app.engine.speculative.request_draws import RequestDraws

MTP: Final = "mtp"
EAGLE: Final = "eagle"
MOST_TOKENS: Final = {MTP: 4, EAGLE: 8}
"""One layer, applied to its own output, soon knows little. Heads are trained for that, with up to seven steps."""


class PredictingRunner(ModelRunner, Protocol):
    """A model that drafts with a layer of its own, or a head."""

    @property
    def predictor_share(self) -> float:
        """How much of a step's work a draft is, about."""

    def draft(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        context_lengths: Sequence[int],
        samplers: Sequence[TokenSampler | None],
    ) -> tuple[list[int], list[float]]:
        """For each sequence, the token after its last one and its probability; -1 where it can't be drafted.

        tokens: the last token of each, which no step has computed, or the draft of the call before. samplers: draw the
        drafts; None: the likeliest is taken.
        """

    def forget_slot(self, slot: int) -> None:
        """Overwrites the hidden states and the drafts of the slot's sequence, which leaves it, with zeros."""


@dataclass(slots=True)
class _Drawing:
    draws: RequestDraws
    sampler: TokenSampler | None = None
    """Draws the drafts of this step."""


class PredictorDrafts:
    """A `DraftSource`."""

    def __init__(self, runner: PredictingRunner, most_tokens: int = 16, *, kind: str = MTP) -> None:
        """kind: MTP or EAGLE."""
        self.kind = kind
        self._runner = runner
        self.most_tokens = min(most_tokens, MOST_TOKENS[kind])
        self.cost_share = runner.predictor_share
        self._drawing: dict[SequenceState, _Drawing] = {}

    def lag(self, generation: Generation) -> int | None:
        """0: the target's steps have computed all; None if the text is about to fill the context."""
        fits = generation.sequence.length + self.most_tokens < self._runner.max_context_tokens
        return 0 if fits else None

    def follow(self, generation: Generation, tokens: int) -> None:
        """There is nothing to follow."""

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """Drafts one more token for each; None where the hidden state of the token before is not known."""
        contexts = [each.sequence.computed + len(each.draft_tokens) for each in generations]
        tokens, chances = self._runner.draft(
            [(each.draft_tokens or each.tokens)[-1] for each in generations],
            [at + each.sequence.dropped for at, each in zip(contexts, generations, strict=True)],
            [each.sequence.slot for each in generations],
            contexts,
            [self._sampler(each) for each in generations],
        )
        return [None if token < 0 else DraftToken(token, chance) for token, chance in zip(tokens, chances, strict=True)]

    def forget(self, sequence: SequenceState) -> None:
        """As `DraftSource.forget`. The slot's next sequence can't take its hidden state for its own."""
        self._drawing.pop(sequence, None)
        self._runner.forget_slot(sequence.slot)

    def pause(self, sequence: SequenceState) -> None:
        """There is nothing that others need: its keys and hidden states have places of their own."""

    def clear(self, owner: str) -> None:
        """There is nothing to remove: the user's keys are in the target's pages."""

    def _sampler(self, generation: Generation) -> TokenSampler | None:
        """What draws the next draft; None: the request takes the likeliest, or its text has shifted."""
        if generation.sequence.dropped or (generation.constraint is None and _takes_the_likeliest(generation)):
            return None
        drawing = self._drawing.get(generation.sequence)
        if drawing is None:
            drawing = self._drawing[generation.sequence] = _Drawing(RequestDraws(self._runner, are_scored=False))
        if not generation.draft_tokens:
            drawing.sampler = drawing.draws.begin(generation)
        return drawing.sampler

    def release_memory(self) -> None:
        """The runner's memory is all there is to give back."""


def _takes_the_likeliest(generation: Generation) -> bool:
    """Whether the sampler changes nothing of what the model says."""
    sampling = generation.request.sampling
    return sampling.temperature == 0 and not (
        sampling.logit_bias
        or sampling.min_new_tokens
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1
    )
