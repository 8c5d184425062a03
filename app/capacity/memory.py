"""The division of a machine's memory: weights, the service, and KV pages. Does not know speeds."""

import math
from dataclasses import dataclass
from typing import Final

from app.capacity.demand import Demand, Windows
from app.capacity.machine import Machine
from app.capacity.traffic import Traffic, median_request_tokens

SERVICE_BYTES: Final = 1536 << 20
"""Memory of the service beside weights and pages (docs/sizing.md)."""
WORKER_BYTES: Final = 300 << 20
"""Memory of each worker after the first."""
STATES_PART: Final = 2
"""States get at most one in this many parts of `engine.kv_memory_bytes`."""
_MEMORY_SHARE: Final = 0.9
"""Share of the machine's memory that is used; the rest is for the system."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the whole machine, except where named per worker."""

    total_bytes: int
    weight_bytes: int
    """Weights of all workers' copies."""
    service_bytes: int
    kv_bytes_per_worker: int
    """The largest possible `engine.kv_memory_bytes`: the memory left for pages, without those of what drafts."""
    kv_bytes_per_token: int
    kv_tokens_per_worker: int
    """Tokens with keys and values in all layers. With sliding windows a longer text takes less than its tokens."""
    answers_per_worker: int
    """Number of median requests whose pages fit at the same time."""
    state_bytes_per_answer: int = 0
    """Bytes of an answer's recurrent states, from the same memory."""
    draft_bytes_per_token: int = 0
    """Bytes of a token's keys and values for what drafts, beside `engine.kv_memory_bytes`."""

    @property
    def state_tokens(self) -> int:
        """How many tokens' keys and values take as much memory as an answer's states."""
        return -(-self.state_bytes_per_answer // max(self.kv_bytes_per_token, 1))

    @property
    def most_answers(self) -> int | None:
        """The most concurrent answers whose states fit their part of the memory; None: there are no states."""
        if not self.state_bytes_per_answer:
            return None
        return self.kv_bytes_per_worker // (STATES_PART * self.state_bytes_per_answer)


def kept_keys(demand: Demand, machine: Machine) -> Windows:
    """How many of a text's tokens have their keys and values kept.

    Layers with windows keep only these, except where pages are saved (`memory.folder`), as is needed for users to stay
    with one of several workers.
    """
    return demand.keys if machine.nodes == 1 else Windows(demand.attention_layers)


def memory_of(demand: Demand, machine: Machine, traffic: Traffic, kv_type: str, draft: Demand | None = None) -> Memory:
    """Divides the machine's memory, with a worker on each node.

    draft: of a draft model or head in each, which then drafts in place of the model's own layer; None: there is none.
    """
    weights = (demand.weight_bytes + (draft.weight_bytes if draft is not None else 0)) * machine.nodes
    service = SERVICE_BYTES + WORKER_BYTES * (machine.nodes - 1)
    own_layer = demand.predictor_bytes_per_token(kv_type)
    per_token = demand.kv_bytes_per_token(kv_type) - own_layer
    drafting = own_layer if draft is None else draft.kv_bytes_per_token(kv_type)
    left = max(0, int(machine.memory_bytes * _MEMORY_SHARE) - weights - service) // machine.nodes
    left = left * per_token // (per_token + drafting)
    states = demand.states.answer_bytes
    kept = math.ceil(kept_keys(demand, machine).seen(median_request_tokens(traffic)))
    answers = left // max(per_token * kept + states, STATES_PART * states)
    tokens = left // per_token
    return Memory(machine.memory_bytes, weights, service, left, per_token, tokens, answers, states, drafting)
