"""What a draft model adds to a plan: its memory, and the speed of answers that it drafts for.

The share of right drafts is an assumption: it depends on models and texts. Knows no files.
"""

from dataclasses import dataclass
from typing import Final

from app.capacity.demand import CapacityError, Demand
from app.capacity.machine import Machine
from app.capacity.step_time import decode_step
from app.capacity.traffic import Traffic
from app.capacity.users import step_times

RIGHT_SHARE: Final = 0.7
"""Of drafts whose predecessors were right, those that are right too."""
MOST_TOKENS: Final = 8
"""As `engine.draft_tokens`."""
ANSWERS: Final = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class DraftSpeed:
    """Tokens per second of one worker whose answers are drafted."""

    streams: int
    draft_tokens: int
    """How many are drafted at once; 0: drafts do not pay."""
    expected_tokens_per_s: float
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


def draft_plan(demand: Demand, draft: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> DraftPlan:
    """Plans the model with a draft model. Raises CapacityError for one that can't draft."""
    if draft.states.layers:
        raise CapacityError(f"--draft: {draft.name} has recurrent states, which a draft model can't have")
    times, draft_times = step_times(demand, machine, kv_type), step_times(draft, machine, kv_type)
    context = max(1, min(traffic.context_tokens, demand.context_tokens - 1, draft.context_tokens - 1))
    speeds = []
    for answers in ANSWERS:
        alone = answers / times.expected(decode_step(answers, context, demand.keys)).seconds
        draft_s = draft_times.expected(decode_step(answers, context, draft.keys)).seconds
        deep, best = 0, alone
        for tokens in range(1, MOST_TOKENS + 1):
            made = answers * sum(RIGHT_SHARE**place for place in range(tokens + 1))
            step = decode_step(answers * (1 + tokens), context, demand.keys)
            speed = made / (times.expected(step).seconds + tokens * draft_s)
            if speed > best:
                deep, best = tokens, speed
        speeds.append(DraftSpeed(answers, deep, best, best / alone))
    return DraftPlan(draft.name, draft.weight_bytes, draft.kv_bytes_per_token(kv_type), RIGHT_SHARE, tuple(speeds))
