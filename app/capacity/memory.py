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


def kept_keys(demand: Demand, machine: Machine) -> Windows:
    """Of how many tokens a text's keys and values are kept.

    Layers with windows keep no more than these, but not where pages are saved (`memory.folder`), as users need who stay
    with one of several workers.
    """
    return demand.keys if machine.nodes == 1 else Windows(demand.layers)


def memory_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> Memory:
    """What the machine's memory holds, with a worker on each node."""
    weights = demand.weight_bytes * machine.nodes
    service = SERVICE_BYTES + WORKER_BYTES * (machine.nodes - 1)
    per_token = demand.kv_bytes_per_token(kv_type)
    left = max(0, int(machine.memory_bytes * _MEMORY_SHARE) - weights - service) // machine.nodes
    tokens = left // per_token
    answers = tokens // math.ceil(kept_keys(demand, machine).seen(median_request_tokens(traffic)))
    return Memory(machine.memory_bytes, weights, service, left, per_token, tokens, answers)
