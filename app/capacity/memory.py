"""What a machine's memory holds: weights, the service, and pages of keys and values. Does not know speeds."""

import math
from dataclasses import dataclass
from typing import Final

from app.capacity.demand import Demand, Windows
from app.capacity.machine import Machine
from app.capacity.traffic import Traffic, median_request_tokens

SERVICE_BYTES: Final = 1536 << 20
"""Of the service beside weights and pages (docs/sizing.md)."""
WORKER_BYTES: Final = 300 << 20
"""Of each worker after the first."""
STATES_PART: Final = 2
"""One of so many parts of `engine.kv_memory_bytes` is the most that states get."""
_MEMORY_SHARE: Final = 0.9
"""Of the machine's memory; the rest is the system's."""


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
    """Tokens with keys and values in all layers. Where layers have windows a longer text takes less than its tokens."""
    answers_per_worker: int
    """Requests of the traffic's medians whose pages fit at the same time."""
    state_bytes_per_answer: int = 0
    """Of the states of layers without attention, from the same memory."""

    @property
    def state_tokens(self) -> int:
        """Tokens whose keys and values take as much as an answer's states."""
        return -(-self.state_bytes_per_answer // max(self.kv_bytes_per_token, 1))

    @property
    def most_answers(self) -> int | None:
        """Answers at once whose states are at most their part of the memory; None: there are no states."""
        if not self.state_bytes_per_answer:
            return None
        return self.kv_bytes_per_worker // (STATES_PART * self.state_bytes_per_answer)


def kept_keys(demand: Demand, machine: Machine) -> Windows:
    """Of how many tokens a text's keys and values are kept.

    Layers with windows keep no more than these, but not where pages are saved (`memory.folder`), as users need who stay
    with one of several workers.
    """
    return demand.keys if machine.nodes == 1 else Windows(demand.attention_layers)


def memory_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> Memory:
    """What the machine's memory holds, with a worker on each node."""
    weights = demand.weight_bytes * machine.nodes
    service = SERVICE_BYTES + WORKER_BYTES * (machine.nodes - 1)
    per_token = demand.kv_bytes_per_token(kv_type)
    left = max(0, int(machine.memory_bytes * _MEMORY_SHARE) - weights - service) // machine.nodes
    states = demand.states.answer_bytes
    kept = math.ceil(kept_keys(demand, machine).seen(median_request_tokens(traffic)))
    answers = left // max(per_token * kept + states, STATES_PART * states)
    return Memory(machine.memory_bytes, weights, service, left, per_token, left // per_token, answers, states)
