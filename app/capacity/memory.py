"""What a machine's memory holds: weights, the service, and pages of keys and values. Does not know speeds."""

from dataclasses import dataclass
from typing import Final

from app.capacity.demand import Demand
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
    answers_per_worker: int
    """Requests of the traffic's medians whose pages fit at the same time."""


def memory_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str) -> Memory:
    """What the machine's memory holds, with a worker on each node."""
    weights = demand.weight_bytes * machine.nodes
    service = SERVICE_BYTES + WORKER_BYTES * (machine.nodes - 1)
    per_token = demand.kv_bytes_per_token(kv_type)
    left = max(0, int(machine.memory_bytes * _MEMORY_SHARE) - weights - service) // machine.nodes
    tokens = left // per_token
    answers = tokens // median_request_tokens(traffic)
    return Memory(machine.memory_bytes, weights, service, left, per_token, tokens, answers)
