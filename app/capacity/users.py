"""How many users a worker serves within the SLO, found by simulations, and the bottleneck for more.

Does not know the table of machines, nor how a plan is shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from app.capacity.demand import Demand
from app.capacity.machine import Machine
from app.capacity.memory import STATES_PART, Memory, kept_keys, memory_of
from app.capacity.shares import shares_of
from app.capacity.simulation import SERVICE_LATENCY_S, SERVICE_SHARE, Outcome, simulate
from app.capacity.step_time import StepTimes, decode_step, prompt_steps
from app.capacity.traffic import Slo, Traffic, prompt_quantile

MOST_RUNNING: Final = 256
"""The most requests that a worker computes at a time; the plan says how many its users need."""
MOST_USERS: Final = 20_000
"""The most users of a worker, where the search ends."""
GAIN: Final = 1.5
"""The factor on a rate that shows whether it limits."""
MEMORY_GAIN: Final = 3.0
PLACES_GAIN: Final = 2
_SEARCH_STEP: Final = 1.05
_BEYOND: Final = 1.15
_PAGE_TOKENS: Final = 32
_PLACES_STEP: Final = 8
_KV_STEP_BYTES: Final = 64 << 20

Settings = Mapping[str, int]
"""A service's settings by name."""


@dataclass(frozen=True, slots=True)
class Users:
    """How many users a machine serves within the SLO."""

    users: int
    is_more: bool
    """Whether there may be more, because the search ended at MOST_USERS for each worker."""
    requests_per_s: float
    limit: str
    """The bottleneck for more users: "read", "compute", "memory", or "places": more than MOST_RUNNING at a time."""
    running_per_worker: int
    """The most requests at a time in a worker."""
    settings: Settings
    """The settings that the service needs for these users; empty if there are none."""
    history_share: float
    """The share of requests whose history was still in the prefix cache."""
    long_prompt_tokens: int
    """The length that exceeds `Promise.share` of the prompts."""
    long_prompt_s: float
    """Time of that prompt's first token in an idle worker, through HTTP."""
    token_s: float
    """Time per token of a single answer, through HTTP."""


def default_kv_type(tier: str) -> str:
    """The type that `engine.kv_type: auto` chooses on the tier."""
    return "bf16" if tier == "amx_int8" else "int16"


def step_times(demand: Demand, machine: Machine, kv_type: str | None = None) -> StepTimes:
    """Step times of the model on one node. kv_type: None: the tier's default."""
    shares, _ = shares_of(machine.tier, machine.vendor)
    return StepTimes(demand, machine, shares, kv_type or default_kv_type(machine.tier))


def load_outcome(
    demand: Demand,
    machine: Machine,
    traffic: Traffic,
    slo: Slo,
    kv_type: str,
    users: int,
    most_running: int = MOST_RUNNING,
    draft: Demand | None = None,
) -> Outcome:
    """The result of a worker's part of the users, if it may use all of the memory.

    Users stay with their worker, as they do where pages are saved (`memory.folder`). draft: a draft model, which takes
    memory; its speed is not counted on.
    """
    memory = memory_of(demand, machine, traffic, kv_type, draft)
    return simulate(
        step_times(demand, machine, kv_type),
        traffic,
        slo,
        kv_tokens=memory.kv_tokens_per_worker,
        state_tokens=memory.state_tokens,
        most_running=most_running if memory.most_answers is None else min(most_running, memory.most_answers),
        users=-(-users // machine.nodes),
        context_tokens=demand.context_tokens,
        kept=kept_keys(demand, machine),
    )


def _search(keeps: Callable[[int], bool]) -> int:
    """The most users, to about 5 % and at most MOST_USERS, for which `keeps` holds; 0 if not even one."""
    if not keeps(1):
        return 0
    least, most = 1, 2
    while keeps(most):
        if most == MOST_USERS:
            return most
        least, most = most, min(MOST_USERS, most * 2)
    while most > max(least + 1, int(least * _SEARCH_STEP)):
        middle = (least + most) // 2
        least, most = (middle, most) if keeps(middle) else (least, middle)
    return least


def most_users(
    outcome: Callable[[int, str], Outcome], rates: Sequence[str], settings: Sequence[str]
) -> tuple[int, Outcome, str]:
    """The most users of a worker within the SLO, the result with them, and the bottleneck: one of rates and settings.

    outcome: simulates that many users with one of those raised ("": none). A setting is named before any rate if
    raising it alone allows some more users, because that costs nothing.
    """
    outcome = cache(outcome)
    users = _search(lambda count: outcome(count, "").kept)
    beyond = max(users + 1, int(users * _BEYOND))
    raised = {name: outcome(beyond, name) for name in (*rates, *settings)}
    enough = [name for name in settings if raised[name].kept]
    at_most = outcome(max(1, users), "")
    if enough:
        limit = enough[0]
    elif at_most.running_most == 0:  # not even one request fits
        limit = "memory"
    else:
        limit = max(raised, key=lambda name: raised[name].kept_share)
    return users, at_most, limit


def users_of(
    demand: Demand, machine: Machine, traffic: Traffic, slo: Slo, kv_type: str, draft: Demand | None = None
) -> Users:
    """The most users within the SLO over all workers, the bottleneck, and the settings that they need.

    draft: as for `load_outcome`.
    """
    times = step_times(demand, machine, kv_type)
    memory = memory_of(demand, machine, traffic, kv_type, draft)

    def outcome(users: int, raised: str) -> Outcome:
        trial = machine.scaled(
            read=GAIN if raised == "read" else 1.0,
            compute=GAIN if raised == "compute" else 1.0,
            memory=MEMORY_GAIN if raised == "memory" else 1.0,
        )
        places = MOST_RUNNING * (PLACES_GAIN if raised == "places" else 1)
        return load_outcome(demand, trial, traffic, slo, kv_type, users * trial.nodes, places, draft)

    per_worker, at_most, limit = most_users(outcome, ("read", "compute", "memory"), ("places",))
    users = per_worker * machine.nodes
    long_prompt = min(prompt_quantile(traffic, slo.share), max(1, demand.context_tokens - traffic.context_tokens))
    prompt_s = sum(
        times.expected(step).seconds for step in prompt_steps(long_prompt, traffic.context_tokens, demand.keys)
    )
    return Users(
        users=users,
        is_more=per_worker == MOST_USERS,
        requests_per_s=users / traffic.seconds_between,
        limit=limit,
        running_per_worker=at_most.running_most,
        settings=_settings(at_most, memory, machine.nodes, per_worker) if users else {},
        history_share=at_most.history_share,
        long_prompt_tokens=long_prompt,
        long_prompt_s=prompt_s / SERVICE_SHARE + SERVICE_LATENCY_S,
        token_s=times.expected(decode_step(1, traffic.context_tokens + traffic.prompt_tokens, demand.keys)).seconds
        / SERVICE_SHARE,
    )


def _settings(outcome: Outcome, memory: Memory, workers: int, users: int) -> Settings:
    """Rounds settings up, because real load varies around the simulated one."""
    places = -(-outcome.running_most // _PLACES_STEP) * _PLACES_STEP
    half_empty_pages = _PAGE_TOKENS * (users + places)
    needed = (outcome.kv_tokens_most + half_empty_pages) * memory.kv_bytes_per_token
    # A prompt's chunk takes as many state pages as an answer holds.
    needed = max(needed, STATES_PART * (places + 1) * memory.state_bytes_per_answer)
    return {
        "worker.count": workers,
        "worker.max_concurrent_requests": places,
        "engine.kv_memory_bytes": min(memory.kv_bytes_per_worker, -(-needed // _KV_STEP_BYTES) * _KV_STEP_BYTES),
    }
