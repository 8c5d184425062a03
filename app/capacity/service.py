"""The expected capacity of running workers, from their own measurements, for the operator's page.

A worker reports the times of a single request in its warm-up. The two rates of its node are fitted so that the expected
times of such a request are these; so they include everything that slows a worker down there, and are more accurate than
the shares of a table. Does not know who asks, nor how workers report.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from app.capacity.demand import CapacityError, Demand, Matrices, Windows
from app.capacity.heads import MixedHeads
from app.capacity.machine import Machine
from app.capacity.plan import Candidate, candidates_for
from app.capacity.shares import shares_of
from app.capacity.simulation import Outcome, simulate
from app.capacity.states import States
from app.capacity.step_time import StepTimes, decode_step, prompt_steps
from app.capacity.traffic import Slo, Traffic, bounded
from app.capacity.users import GAIN, MEMORY_GAIN, PLACES_GAIN, most_users

_ROUNDS: Final = 60
_MOST_OVERHEAD_SHARE: Final = 0.5
"""Most overhead as a share of a step's time: a machine may be faster than those that overheads were fitted to."""
_MOST_PLANNED_BITS: Final = 10.0
"""Bits per weight; larger weights are floats, for which the table's machines have no shares."""
_FREE_SHARE: Final = 0.9
"""The share of the free memory that pages may take."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurements of one model's workers."""

    name: str
    workers: int
    tier: str
    cores: int
    max_running: int
    context_tokens: int
    workers_there: int
    """Workers on the slowest one's machine, which share its memory."""
    model: Mapping[str, Any]
    """The fields of the slowest worker's `app.messages.capacity.WorkerCapacity`."""


@dataclass(frozen=True, slots=True)
class ServiceCapacity:
    """The expected capacity of a model's workers."""

    name: str
    workers: int
    prompt_tokens_per_s: float
    """Expected speed of one worker for a single prompt of 512 tokens."""
    answer_tokens_per_s: float
    """Expected speed of one worker for a single answer at the traffic's context."""
    kv_tokens: int
    """Tokens in one worker's pages."""
    users: int
    """The most users within the SLO, over all workers."""
    serves: bool
    """Whether that is enough for the requested users."""
    limit: str
    """The bottleneck for more users: "read", "compute", "memory"; or a setting: "places"
    (worker.max_concurrent_requests), "kv_memory" (engine.kv_memory_bytes, for which the machine has memory)."""
    candidates: tuple[Candidate, ...] | None
    """Machines of the table, each with the settings that it needs; None: unknown for this type of weights."""


def demand_of_measurement(measured: Measurement) -> Demand:
    model = measured.model
    sizes = (
        "layer_weights", "layer_bytes", "head_weights", "head_bytes", "other_bytes", "expert_bytes", "expert_weights",
        "experts", "experts_per_token",
    )  # fmt: skip
    return Demand(
        name=measured.name,
        matrices=Matrices(**{name: model[name] for name in sizes}, type_name="as it runs"),
        **{name: model[name] for name in ("layers", "hidden", "heads", "kv_heads", "head_dim")},
        context_tokens=measured.context_tokens,
        windows=tuple((window, layers) for window, layers in model["windows"]),
        states=States(**model["states"]),
        mixed=MixedHeads.of(model["mixed"]),
    )


def measured_times(measured: Measurement) -> tuple[StepTimes, StepTimes, StepTimes]:
    """The worker's step times: as measured, with a higher read rate, and with more multiply-adds.

    Raises CapacityError for invalid times.
    """
    demand, model = demand_of_measurement(measured), measured.model
    prompt_s, token_s, tokens = model["prompt_s"], model["token_s"], model["prompt_tokens"]
    if not (prompt_s > 0 and token_s > 0 and tokens > 0):
        raise CapacityError(f"the workers of {measured.name} have not measured themselves")
    tier = measured.tier if measured.tier != "scalar" else "avx2"
    shares, _ = shares_of(tier, model["vendor"])
    most_s = _MOST_OVERHEAD_SHARE * min(token_s, prompt_s) / demand.layers
    shares = replace(shares, overhead_s=min(shares.overhead_s, most_s))
    machine = Machine(
        measured.name, tier, model["vendor"], 1, measured.cores, 1, 50e9, 4e11, 50e9, 4e11, "vnni", True, "its warm-up"
    )
    answer, prompt = decode_step(1, tokens + 8, demand.keys), prompt_steps(tokens, 0, demand.keys)
    for _ in range(_ROUNDS):  # fit each rate to the time that depends on it most
        times = StepTimes(demand, machine, shares, model["kv_type"])
        read = times.expected(answer).seconds / token_s
        compute = sum(times.expected(step).seconds for step in prompt) / prompt_s
        machine = machine.scaled(read=read, compute=compute)

    def raised(trial: Machine) -> StepTimes:
        return StepTimes(demand, trial, shares, model["kv_type"])

    return raised(machine), raised(machine.scaled(read=GAIN)), raised(machine.scaled(compute=GAIN))


def service_capacity(
    measured: Measurement, users: int, traffic: Traffic | None = None, slo: Slo | None = None
) -> ServiceCapacity:
    """The capacity of the model's workers together, each with its part of the users. Raises CapacityError."""
    slo = slo or Slo()
    traffic = traffic or Traffic()
    traffic = bounded(traffic, measured.context_tokens)
    demand = demand_of_measurement(measured)
    kv_tokens = measured.model["kv_tokens"]
    possible_kv_tokens = _possible_kv_tokens(measured, demand)
    kept = demand.keys if measured.model["keeps_windows"] else Windows(demand.attention_layers)
    times, faster_reads, faster_compute = measured_times(measured)

    def outcome(count: int, raised: str) -> Outcome:
        tokens = {"memory": int(kv_tokens * MEMORY_GAIN), "kv_memory": possible_kv_tokens}.get(raised, kv_tokens)
        return simulate(
            {"read": faster_reads, "compute": faster_compute}.get(raised, times),
            traffic,
            slo,
            kv_tokens=tokens,
            most_running=measured.max_running * (PLACES_GAIN if raised == "places" else 1),
            users=count,
            context_tokens=measured.context_tokens,
            kept=kept,
        )

    settings = ("places", "kv_memory") if possible_kv_tokens > kv_tokens else ("places",)
    per_worker, _, limit = most_users(outcome, ("read", "compute", "memory"), settings)
    total = per_worker * measured.workers
    prompt_s = sum(times.expected(step).seconds for step in prompt_steps(512, 0, demand.keys))
    layer_weights = demand.all_weights - demand.matrices.head_weights
    is_planned = 8 * demand.all_layer_bytes <= _MOST_PLANNED_BITS * layer_weights
    return ServiceCapacity(
        name=measured.name,
        workers=measured.workers,
        prompt_tokens_per_s=512 / prompt_s,
        answer_tokens_per_s=1 / times.expected(decode_step(1, traffic.context_tokens, demand.keys)).seconds,
        kv_tokens=kv_tokens,
        users=total,
        serves=users <= total,
        limit=limit,
        candidates=candidates_for(demand, traffic, slo, users, None) if is_planned else None,
    )


def _possible_kv_tokens(measured: Measurement, demand: Demand) -> int:
    """Tokens that a worker's pages could hold in the free memory, which most of its own pages do not occupy yet."""
    share_bytes = _FREE_SHARE * measured.model["memory_left_bytes"] / measured.workers_there
    return int(share_bytes / demand.kv_bytes_per_token(measured.model["kv_type"]))


def answer(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Answers a question to `python -m app.capacity`. Raises CapacityError, KeyError, TypeError for an invalid one."""
    measurements = [Measurement(**values) for values in question["models"]]
    return [asdict(service_capacity(measured, question["users"])) for measured in measurements]
