"""The plan of one model on one machine: speeds, memory, users at the promise, what limits, which machine would do.

Puts together what the other files compute. Does not read files, measure, or print.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.capacity.demand import Demand
from app.capacity.machine import Machine
from app.capacity.processors import most_sockets, processor_names, table_machine
from app.capacity.shares import shares_of
from app.capacity.simulation import Outcome, simulate
from app.capacity.step_time import StepTimes, decode_step, prompt_steps
from app.capacity.traffic import Promise, Traffic, longest_request_tokens, prompt_quantile

SERVICE_BYTES: Final = 1536 << 20
"""Of the service beside weights and pages (docs/sizing.md)."""
WORKER_BYTES: Final = 300 << 20
"""Of each worker after the first."""
_MEMORY_SHARE: Final = 0.9
"""Of the machine's memory; the rest is the system's."""
MOST_RUNNING: Final = 256
"""Requests that a worker computes at a time, at most: the plan says how many its users need."""
PROMPTS: Final = (512, 4096)
ANSWERS: Final = (1, 4, 8, 16, 32, 64)
_MOST_USERS: Final = 20_000
"""Of a worker: the search ends there."""
_SEARCH_STEP: Final = 1.05
_BEYOND: Final = 1.15
_GAIN: Final = 1.5
"""By how much a rate is raised to see whether it limits."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one worker."""

    work: str
    """"prompt" or "decode"."""
    streams: int
    context_tokens: int
    """The prompt's tokens, or those before each answer."""
    best_tokens_per_s: float
    best_limit: str
    """What no program exceeds, and what sets it: "read" or "compute"."""
    expected_tokens_per_s: float
    expected_limit: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the whole machine, but for those of a worker."""

    total_bytes: int
    weight_bytes: int
    """Of all workers' copies."""
    service_bytes: int
    kv_bytes_per_worker: int
    """What is left for pages: the most that `engine.kv_memory_bytes` can be."""
    kv_bytes_per_token: int
    kv_tokens_per_worker: int
    answers_per_worker: int
    """Requests of the traffic's medians whose pages fit at the same time."""


@dataclass(frozen=True, slots=True)
class Users:
    """How many users a machine serves at the promise."""

    users: int
    requests_per_s: float
    limit: str
    """What more users would need first: "read", "compute", "memory", or "fits nothing"."""
    running_per_worker: int
    """The most requests at a time in a worker: `worker.max_concurrent_requests` should not be less."""
    history_share: float
    """Of the requests whose history was still in the prefix cache."""
    long_prompt_tokens: int
    """The prompt that is longer than those of `Promise.share` of the requests."""
    long_prompt_s: float
    """How long its first token takes in an idle worker."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine of the table, and whether it serves the users that were asked for."""

    name: str
    title: str
    serves: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it."""

    demand: Demand
    machine: Machine
    kv_type: str
    shares_of: str
    """The tier and vendor whose shares it expects."""
    traffic: Traffic
    promise: Promise
    speeds: tuple[Speed, ...]
    memory: Memory
    users: Users
    wanted_users: int | None
    serves_wanted: bool | None
    candidates: tuple[Candidate, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)


def default_kv_type(tier: str) -> str:
    """What `engine.kv_type: auto` is there."""
    return "bf16" if tier == "amx_int8" else "int16"


def memory_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> Memory:
    """What the machine's memory holds."""
    weights = demand.weight_bytes * machine.nodes
    service = SERVICE_BYTES + WORKER_BYTES * (machine.nodes - 1)
    per_token = demand.kv_bytes_per_token(kv_type)
    left = max(0, int(machine.memory_bytes * _MEMORY_SHARE) - weights - service) // machine.nodes
    tokens = left // per_token
    request = traffic.context_tokens + traffic.prompt_tokens + traffic.answer_tokens
    return Memory(machine.memory_bytes, weights, service, left, per_token, tokens, tokens // request)


def step_times(demand: Demand, machine: Machine, kv_type: str | None = None) -> StepTimes:
    """The times of the model's steps on one node. kv_type: None is the tier's default."""
    shares, _ = shares_of(machine.tier, machine.vendor)
    return StepTimes(demand, machine, shares, kv_type or default_kv_type(machine.tier))


def load_outcome(
    demand: Demand, machine: Machine, traffic: Traffic, promise: Promise, kv_type: str, users: int
) -> Outcome | None:
    """What a worker's part of the users comes to; None: not even one request fits into the memory.

    Users stay with their worker, as they do where pages are saved (`memory.folder`).
    """
    memory = memory_of(demand, machine, traffic, kv_type)
    if memory.kv_tokens_per_worker < longest_request_tokens(traffic):
        return None
    return simulate(
        step_times(demand, machine, kv_type),
        traffic,
        promise,
        kv_tokens=memory.kv_tokens_per_worker,
        most_running=MOST_RUNNING,
        users=-(-users // machine.nodes),
    )


def _search(keeps: Callable[[int], bool]) -> int:
    """The most users, to about 5 %, with which `keeps` holds; 0: not with one."""
    if not keeps(1):
        return 0
    least, most = 1, 2
    while most < _MOST_USERS and keeps(most):
        least, most = most, most * 2
    while most > max(least + 1, int(least * _SEARCH_STEP)):
        middle = (least + most) // 2
        least, most = (middle, most) if keeps(middle) else (least, middle)
    return least


@dataclass(frozen=True, slots=True)
class Gains:
    """By how much a worker's rates and memory are raised, to see what helps."""

    read: float = 1.0
    compute: float = 1.0
    memory: float = 1.0


def most_users(outcome: Callable[[int, Gains], Outcome]) -> tuple[int, Outcome, str]:
    """The most users of a worker at the promise, the outcome with them, and what limits: "read", "compute" or "memory".

    outcome: of so many users, with raised rates.
    """
    users = _search(lambda count: outcome(count, Gains()).kept)
    beyond = max(users + 1, int(users * _BEYOND))
    raised = {
        "read": Gains(read=_GAIN),
        "compute": Gains(compute=_GAIN),
        "memory": Gains(memory=2 * _GAIN),
    }
    helped = {}
    for name, gains in raised.items():
        result = outcome(beyond, gains)
        helped[name] = min(result.first_token_share, result.token_share)
    return users, outcome(max(1, users), Gains()), max(helped, key=lambda name: helped[name])


def users_of(demand: Demand, machine: Machine, traffic: Traffic, promise: Promise, kv_type: str) -> Users:
    """The most users at the promise, over all workers, and what limits them."""
    times = step_times(demand, machine, kv_type)
    long_prompt = prompt_quantile(traffic, promise.share)
    steps = prompt_steps(long_prompt, traffic.context_tokens)
    long_prompt_s = sum(times.expected(step).seconds for step in steps)
    memory = memory_of(demand, machine, traffic, kv_type)
    if memory.kv_tokens_per_worker < longest_request_tokens(traffic):
        return Users(0, 0.0, "memory", 0, 0.0, long_prompt, long_prompt_s)

    def outcome(users: int, gains: Gains) -> Outcome:
        trial = machine.scaled(read=gains.read, compute=gains.compute, memory=gains.memory)
        result = load_outcome(demand, trial, traffic, promise, kv_type, users * trial.nodes)
        assert result is not None, "no gain takes memory away"
        return result

    per_worker, at_most, limit = most_users(outcome)
    users = per_worker * machine.nodes
    return Users(
        users=users,
        requests_per_s=users / traffic.seconds_between,
        limit=limit,
        running_per_worker=at_most.running_most,
        history_share=at_most.history_share,
        long_prompt_tokens=long_prompt,
        long_prompt_s=long_prompt_s,
    )


def speeds_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> tuple[Speed, ...]:
    """Prompts, and answers by streams at the traffic's context and at eight times that, as far as the model goes."""
    times = step_times(demand, machine, kv_type)
    speeds = []
    for tokens in PROMPTS:
        if tokens > demand.context_tokens:
            continue
        steps = prompt_steps(tokens)
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
            step = decode_step(answers, context)
            best_s, limit = times.best_s(step)
            time = times.expected(step)
            speeds.append(
                Speed("decode", answers, context, answers / best_s, limit, answers / time.seconds, time.limit)
            )
    return tuple(speeds)


def candidates_for(
    demand: Demand, traffic: Traffic, promise: Promise, users: int, kv_type: str | None, names: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """Each machine of the table, with one socket, and with two where one is not enough."""
    found = []
    for name in names or processor_names():
        machine = table_machine(name)
        serves = _serves(demand, machine, traffic, promise, users, kv_type)
        if not serves and most_sockets(name) > 1:
            name = f"2x-{name}"
            machine = table_machine(name)
            serves = _serves(demand, machine, traffic, promise, users, kv_type)
        found.append(Candidate(name, machine.name, serves))
    return tuple(found)


def _serves(
    demand: Demand, machine: Machine, traffic: Traffic, promise: Promise, users: int, kv_type: str | None
) -> bool:
    kind = kv_type or default_kv_type(machine.tier)
    outcome = load_outcome(demand, machine, traffic, promise, kind, users)
    return outcome is not None and outcome.kept


def make_plan(
    demand: Demand,
    machine: Machine,
    traffic: Traffic,
    *,
    promise: Promise | None = None,
    kv_type: str | None = None,
    wanted_users: int | None = None,
) -> Plan:
    """The plan. kv_type: None is the tier's default. Raises CapacityError."""
    promise = promise or Promise()
    kind = kv_type or default_kv_type(machine.tier)
    users = users_of(demand, machine, traffic, promise, kind)
    return Plan(
        demand=demand,
        machine=machine,
        kv_type=kind,
        shares_of=shares_of(machine.tier, machine.vendor)[1],
        traffic=traffic,
        promise=promise,
        speeds=speeds_of(demand, machine, traffic, kind),
        memory=memory_of(demand, machine, traffic, kind),
        users=users,
        wanted_users=wanted_users,
        serves_wanted=None if wanted_users is None else wanted_users <= users.users,
        candidates=() if wanted_users is None else candidates_for(demand, traffic, promise, wanted_users, kv_type),
    )
