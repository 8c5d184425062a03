"""What a draft model adds to a plan: its memory, and the speed of answers that it drafts for.

The share of right drafts is an assumption: it depends on models and texts. A draft model reads a request's new tokens
after the model has, and its answer waits for that; a head or the model's own layer is a part of the model's steps.
Knows no files.
"""

from dataclasses import dataclass
from typing import Final

from app.capacity.demand import CapacityError, Demand
from app.capacity.machine import Machine
from app.capacity.step_time import decode_step, drafted_step, prompt_steps
from app.capacity.traffic import Traffic
from app.capacity.users import step_times

RIGHT_SHARE: Final = 0.7
"""Of drafts whose predecessors were right, those that are right too."""
MOST_TOKENS: Final = 8
"""As `engine.draft_tokens`."""
_MOST_PREDICTED: Final = 4
"""Tokens at once by a layer of multi-token prediction."""
_MOST_PADDING: Final = 0.01
"""By what share vocabularies of one family differ, whose rows are filled up in other ways."""
ANSWERS: Final = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class DraftSpeed:
    """Tokens per second of one worker whose answers are drafted."""

    streams: int
    draft_tokens: int
    """How many are drafted at once; 0: drafts do not pay."""
    expected_tokens_per_s: float
    """From the first token of an answer of the traffic's length to its last."""
    gain: float
    """Over the same without drafts."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model beside the model of a plan."""

    name: str
    weight_bytes: int
    kv_bytes_per_token: int
    right_share: float
    speeds: tuple[DraftSpeed, ...]


def check_draft_demand(demand: Demand, draft: Demand) -> None:
    """Raises CapacityError for a model that `redoubt serve` would refuse as a draft, as far as sizes tell."""
    if draft.states.layers:
        raise CapacityError(f"--draft: {draft.name} has recurrent states, which a draft model can't have")
    if draft.is_head and draft.hidden != demand.hidden:
        raise CapacityError(
            f"--draft: {draft.name} is a head for a hidden size of {draft.hidden}, and {demand.name} has"
            f" {demand.hidden}"
        )
    sizes = draft.vocab_size, demand.vocab_size
    if min(sizes) and min(sizes) < (1 - _MOST_PADDING) * max(sizes):
        raise CapacityError(
            f"--draft: {draft.name} has another vocabulary than {demand.name}, {sizes[0]:,} tokens and not"
            f" {sizes[1]:,}. A draft model must be of the same family, as Qwen3-0.6B is for Qwen3-8B"
        )


def draft_plan(
    demand: Demand, draft: Demand, machine: Machine, traffic: Traffic, kv_type: str, *, is_own_layer: bool = False
) -> DraftPlan:
    """Plans the model with a draft model, a head or its own layer. Raises CapacityError for one that can't draft."""
    check_draft_demand(demand, draft)
    times, draft_times = step_times(demand, machine, kv_type), step_times(draft, machine, kv_type)
    context = max(1, min(traffic.context_tokens, demand.context_tokens - 1, draft.context_tokens - 1))
    reading_s = 0.0
    if not draft.is_head:
        new = max(1, min(traffic.prompt_tokens, draft.context_tokens - 1))
        steps = prompt_steps(new, min(traffic.context_tokens, draft.context_tokens - new), draft.keys)
        reading_s = sum(draft_times.expected(step).seconds for step in steps)
    most = _MOST_PREDICTED if is_own_layer else MOST_TOKENS
    speeds = []
    for answers in ANSWERS:
        alone = answers / times.expected(decode_step(answers, context, demand.keys)).seconds
        draft_s = draft_times.expected(decode_step(answers, context, draft.keys)).seconds
        deep, best = 0, alone
        for tokens in range(1, most + 1):
            made = answers * sum(RIGHT_SHARE**place for place in range(tokens + 1))
            step_s = times.expected(drafted_step(answers, tokens, context, demand.keys)).seconds
            all_ = answers * traffic.answer_tokens
            speed = all_ / (all_ / made * (step_s + tokens * draft_s) + answers * reading_s)
            if speed > best:
                deep, best = tokens, speed
        speeds.append(DraftSpeed(answers, deep, best, best / alone))
    return DraftPlan(draft.name, draft.weight_bytes, draft.kv_bytes_per_token(kv_type), RIGHT_SHARE, tuple(speeds))
