"""Splits a step's token budget among the running sequences: numbers in, numbers out.

- A step computes at most `step_tokens`. Sequences that decode (one token to compute) come first. Prompts get the rest,
  but at most `prompt_chunk_tokens` while a sequence decodes, which bounds the time between two tokens.
- Half of the prompts' budget goes to the oldest prompt, so that it ends; the rest goes to the prompts with the fewest
  tokens left, so that a short prompt overtakes a long one.

Knows neither pages nor slots.
"""

from collections.abc import Sequence

from app.engine.scheduling.leaders import leaders
from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.sequence import SequenceState
from app.engine.scheduling.sequence_states import SequenceStates


def split_budget(
    active: Sequence[SequenceState],
    limits: SchedulerLimits,
    states: SequenceStates | None,
    *,
    prompt_chunk_tokens: int,
    alone_tokens: int,
) -> None:
    """Sets `planned` of the running sequences that don't stand still, after their cached pages were found.

    states: None if the model has no recurrent states. The rest as in `Scheduler.schedule`.
    """
    prompts = []
    decoding = 0
    for sequence in active:
        left = sequence.length - sequence.computed
        if sequence.loading:
            sequence.planned = 0
        elif left <= 1:  # 0: a branch that waits for the others of its group
            sequence.planned = left + sequence.drafts
            decoding += 1
        else:
            sequence.planned = 0
            prompts.append(sequence)
    if not prompts:
        _trim_drafts(active, limits.step_tokens)
        return
    for sequence in active:
        sequence.planned = min(sequence.planned, 1)
    budget = min(limits.step_tokens - decoding, prompt_chunk_tokens if decoding else alone_tokens)
    oldest = prompts[0]
    oldest.planned = min(oldest.left, (budget + 1) // 2)
    budget -= oldest.planned
    for sequence in sorted(
        leaders(prompts, limits.page_tokens, states), key=lambda prompt: prompt.left - prompt.planned
    ):
        more = min(sequence.left - sequence.planned, budget)
        sequence.planned += more
        budget -= more


def _trim_drafts(active: Sequence[SequenceState], step_tokens: int) -> None:
    """Removes draft tokens beyond the budget, as happens when a newly admitted sequence decodes at once."""
    excess = sum(sequence.planned for sequence in active) - step_tokens
    for sequence in reversed(active):
        if excess <= 0:
            return
        less = min(excess, sequence.planned - 1, sequence.drafts)
        if less > 0:
            sequence.planned -= less
            excess -= less
