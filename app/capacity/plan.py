"""The plan for one model on one machine: speeds, memory, users within the SLO, the bottleneck, suitable machines.

Combines what the other files compute. Does not read files, measure, or print.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.capacity.demand import CapacityError, Demand
from app.capacity.drafts import DraftPlan, draft_plan
from app.capacity.machine import Machine
from app.capacity.memory import Memory, memory_of
from app.capacity.processors import most_sockets, processor_names, table_machine
from app.capacity.shares import measured_types, shares_of
from app.capacity.step_time import decode_step, prompt_steps
from app.capacity.traffic import Slo, Traffic
from app.capacity.users import Users, default_kv_type, load_outcome, step_times, users_of

PROMPTS: Final = (512, 4096)
ANSWERS: Final = (1, 4, 8, 16, 32, 64)
_FLOAT_TYPES: Final = ("fp16", "bf16", "fp32")
"""Their steps multiply other types than the rates count, and nobody has measured them."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one worker."""

    work: str
    """"prompt" or "decode"."""
    streams: int
    context_tokens: int
    """The prompt's tokens, or those before each answer."""
    best_tokens_per_s: float
    best_limit: str
    """What bounds any program with these bytes and this instruction: "read" or "compute"."""
    expected_tokens_per_s: float
    expected_limit: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine of the table, and whether it serves the requested users."""

    name: str
    title: str
    serves: bool


@dataclass(frozen=True, slots=True)
class Plan:
    demand: Demand
    machine: Machine
    kv_type: str
    shares_of: str
    """The tier and vendor whose shares are used."""
    is_type_measured: bool
    """Whether the shares were fitted to weights of this type."""
    traffic: Traffic
    promise: Slo
    speeds: tuple[Speed, ...]
    memory: Memory
    users: Users
    wanted_users: int | None
    serves_wanted: bool | None
    candidates: tuple[Candidate, ...]
    draft: DraftPlan | None = None
    """What drafts: the users' memory leaves room for it, and its speed is not counted on. None: nothing."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def speeds_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> tuple[Speed, ...]:
    """Speeds of prompts, and of answers at the traffic's context and at eight times that, if the model allows."""
    times = step_times(demand, machine, kv_type)
    speeds = []
    for tokens in PROMPTS:
        if tokens > demand.context_tokens:
            continue
        steps = prompt_steps(tokens, 0, demand.keys)
        best = [times.best_s(step) for step in steps]
        expected = [times.expected(step) for step in steps]
        speeds.append(
            Speed(
                "prompt",
                1,
                tokens,
                tokens / sum(seconds for seconds, _ in best),
                best[-1][1],
                tokens / sum(each.seconds for each in expected),
                expected[-1].limit,
            )
        )
    contexts = [max(1, min(traffic.context_tokens, demand.context_tokens - 1))]
    if contexts[0] * 8 < demand.context_tokens:
        contexts.append(contexts[0] * 8)
    for context in contexts:
        for answers in ANSWERS:
            step = decode_step(answers, context, demand.keys)
            best_s, limit = times.best_s(step)
            time = times.expected(step)
            speeds.append(
                Speed("decode", answers, context, answers / best_s, limit, answers / time.seconds, time.limit)
            )
    return tuple(speeds)


def candidates_for(
    demand: Demand,
    traffic: Traffic,
    slo: Slo,
    users: int,
    kv_type: str | None,
    names: Sequence[str] = (),
    draft: Demand | None = None,
) -> tuple[Candidate, ...]:
    """Returns each machine of the table with one socket, or with two where one is not enough.

    draft: a draft model, which takes memory.
    """
    found = []
    for name in names or processor_names():
        machine = table_machine(name)
        serves = _serves(demand, machine, traffic, slo, users, kv_type, draft)
        if not serves and most_sockets(name) > 1:
            name = f"2x-{name}"
            machine = table_machine(name)
            serves = _serves(demand, machine, traffic, slo, users, kv_type, draft)
        found.append(Candidate(name, machine.name, serves))
    return tuple(found)


def _serves(
    demand: Demand,
    machine: Machine,
    traffic: Traffic,
    slo: Slo,
    users: int,
    kv_type: str | None,
    draft: Demand | None,
) -> bool:
    kind = kv_type or default_kv_type(machine.tier)
    return load_outcome(demand, machine, traffic, slo, kind, users, draft=draft).kept


def make_plan(
    demand: Demand,
    machine: Machine,
    traffic: Traffic,
    *,
    slo: Slo | None = None,
    kv_type: str | None = None,
    wanted_users: int | None = None,
    draft: Demand | None = None,
    own_layer: Demand | None = None,
) -> Plan:
    """Makes the plan. kv_type: None: the tier's default. draft: of a draft model. Raises CapacityError.

    own_layer: of a layer of multi-token prediction, which is in the model's memory already, and drafts without `draft`.
    """
    weight_type = demand.matrices.weight_type
    if weight_type in _FLOAT_TYPES:
        raise CapacityError(
            f"{demand.name} with {weight_type} weights is not measured: the plan knows int4 and int8; name a --type, or"
            " convert the model"
        )
    slo = slo or Slo()
    kind = kv_type or default_kv_type(machine.tier)
    users = users_of(demand, machine, traffic, slo, kind, draft)
    drafting = draft or own_layer
    return Plan(
        demand=demand,
        machine=machine,
        kv_type=kind,
        shares_of=shares_of(machine.tier, machine.vendor)[1],
        is_type_measured=weight_type in measured_types(),
        traffic=traffic,
        promise=slo,
        speeds=speeds_of(demand, machine, traffic, kind),
        memory=memory_of(demand, machine, traffic, kind, draft),
        users=users,
        wanted_users=wanted_users,
        serves_wanted=None if wanted_users is None else wanted_users <= users.users,
        candidates=()
        if wanted_users is None
        else candidates_for(demand, traffic, slo, wanted_users, kv_type, draft=draft),
        draft=None
        if drafting is None
        else draft_plan(demand, drafting, machine, traffic, kind, is_own_layer=draft is None),
    )
