"""Workers' reports to the controller, and the rows of its worker table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from app.messages.capacity import WorkerCapacity
from app.messages.model_card import ModelCard


@dataclass(frozen=True, slots=True)
class FoundApplication:
    """Another Serve application that has, or may have, Redoubt's workers."""

    has_worker: bool
    """Whether a worker is up. If not, the application may be starting or failing."""


WorkerState = Literal["alive", "stale", "gone"]

_FREE_SHARE: Final = 16
"""Batches leave one in this many places free, and at least one: as many requests may come in the time in which a batch
gives a place back."""


def places_for_batches(places: int) -> int:
    """With how many of a worker's places taken a request of a batch gets none; a single place is for everybody."""
    return max(1, places - max(1, places // _FREE_SHARE))


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker's facts, reported once when it is ready (Ray Serve: replica metadata)."""

    node: str
    """Name of the machine."""
    pid: int
    model: ModelCard
    speed: float
    """Tokens per second, prompt and output together, measured in the worker's warm-up."""
    cpus: tuple[int, ...]
    """The cores it is pinned to."""
    numa_node: int
    memory_bound: bool
    """Whether its memory comes from its own NUMA nodes only (`worker.bind_memory`, where the system allows it)."""
    max_context_tokens: int
    """The longest prompt and output together, which its KV cache may bound."""
    tier: str
    """The instruction set of its kernels, such as "amx_int8"."""
    arithmetic: str
    """Identifies everything but the weights that the last bits of its results depend on; workers with the same one
    generate the same tokens."""
    ready_since: int
    """Unix seconds by the worker's clock at which it had warmed up."""
    max_running: int
    """Number of requests that it computes at a time (N)."""
    max_waiting: int
    """Number of requests that may wait (Q)."""
    max_saved_bytes: int | None
    """Quota of its folder of saved pages; None: it saves none."""
    capacity: WorkerCapacity | None = None
    """Facts for the operator's capacity calculator; None: unknown."""
    draft: str | None = None
    """The name of the model that drafts for its model (`model.draft`), or "mtp": a layer of the model itself; None:
    nothing drafts."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "pid": self.pid,
            "model": self.model.to_wire(),
            "speed": self.speed,
            "cpus": list(self.cpus),
            "numa_node": self.numa_node,
            "memory_bound": self.memory_bound,
            "max_context_tokens": self.max_context_tokens,
            "tier": self.tier,
            "arithmetic": self.arithmetic,
            "ready_since": self.ready_since,
            "max_running": self.max_running,
            "max_waiting": self.max_waiting,
            "max_saved_bytes": self.max_saved_bytes,
            "capacity": None if self.capacity is None else self.capacity.to_wire(),
            "draft": self.draft,
        }

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> "WorkerFacts":
        """Raises KeyError if a field is missing."""
        return cls(
            node=values["node"],
            pid=values["pid"],
            model=ModelCard.from_wire(values["model"]),
            speed=values["speed"],
            cpus=tuple(values["cpus"]),
            numa_node=values["numa_node"],
            memory_bound=values["memory_bound"],
            max_context_tokens=values["max_context_tokens"],
            tier=values["tier"],
            arithmetic=values["arithmetic"],
            ready_since=values["ready_since"],
            max_running=values["max_running"],
            max_waiting=values["max_waiting"],
            max_saved_bytes=values["max_saved_bytes"],
            capacity=WorkerCapacity.from_wire(values["capacity"]),
            draft=values["draft"],
        )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One heartbeat (Ray Serve: routing stats)."""

    heart_beat: float
    """Unix seconds by the worker's clock."""
    running: int
    """Requests in the engine, without those of batches."""
    waiting: int
    """Requests in the worker's queue, without those of batches."""
    kv_pages: int
    kv_pages_free: int
    batch: int = 0
    """Requests of batches, in the engine and in the queue."""
    kv_pages_cached: int = 0
    """Pages in the prefix cache."""
    computed_tokens: int = 0
    """Tokens that the model computed; since the start, like the next three."""
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    """Without those of batches."""
    generated_tokens_per_s: float = 0.0
    """Rate of the last full second of work; 0 when idle."""
    admitted: int = 0
    """Requests that have started to run, since the start; without those of batches."""
    queued_s: float = 0.0
    """Total queueing time of those requests, in seconds."""
    saved_bytes: int | None = None
    """Size of its folder of saved pages, shared with other workers, as last counted; None: unknown."""
    asleep: bool = False
    """Whether its model sleeps, and wakes for the next request."""
    drafts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Draft tokens computed, and those of them that were right, since the start, by kind: "lookup" (in the text
    itself), "model" (`model.draft`), "mtp" (a layer of the model itself),
    "eagle" (`model.draft`, an EAGLE-3 head)."""
    drafts_failed: bool = False
    """Whether drafting has failed, so that no model drafts until the worker starts again."""

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> "WorkerReport":
        return cls(**{field.name: values[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One row of the worker table, for `GET /v1/workers`."""

    worker_id: str
    node: str
    pid: int
    model_names: tuple[str, ...]
    speed: float
    """Tokens per second, measured by the worker in its warm-up."""
    queue_length: int
    """Requests at the worker, running and waiting, as the router counts them now."""
    check_heart_beat: bool
    """Whether it has reported within `expiration_s`; only then does it get requests."""
    last_heart_beat: float
    """Unix seconds by the worker's clock; 0 before the first report."""
    state: WorkerState
    running: int
    """Requests in the engine without those of batches, from the last report, like the counts that follow."""
    waiting: int
    batch: int
    """Requests of batches, in the engine and in the queue."""
    kv_pages: int
    kv_pages_free: int
    kv_pages_cached: int
    computed_tokens: int
    """Since the worker's start, like the next three."""
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    cpus: tuple[int, ...]
    numa_node: int
    memory_bound: bool
    """Whether its memory comes from its own NUMA nodes only."""
    max_context_tokens: int
    tier: str
    """The instruction set of its kernels, such as "amx_int8"."""
    ready_since: int
    """Unix seconds by the worker's clock."""
    max_running: int
    """Number of requests that it computes at a time."""
    max_waiting: int
    """Number of requests that may wait."""
    generated_tokens_per_s: float
    """Rate of the last full second of work; 0 when idle."""
    admitted: int
    """Requests that have started to run, since the worker's start."""
    queued_s: float
    """Total queueing time of those requests, in seconds."""
    saved_bytes: int | None
    """Size of its folder of saved pages, shared with other workers; None: unknown, or it has none."""
    max_saved_bytes: int | None
    """Quota of that folder; None: it saves none."""
    capacity: WorkerCapacity | None = None
    """Its model's demands and warm-up times; None: unknown."""
    asleep: bool = False
    """Whether its model has given its memory back, and wakes for the next request."""
    draft: str | None = None
    """The name of the model that drafts for its model, or "mtp": a layer of the model itself; None: none does."""
    drafts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Draft tokens computed, and those of them that were right, since the worker's start, by kind: "lookup" (in the
    text itself), "model" (`model.draft`), "mtp" (a layer of the model itself),
    "eagle" (`model.draft`, an EAGLE-3 head)."""
    drafts_failed: bool = False
    """Whether drafting has failed, so that no model drafts until the worker starts again; its log has the error."""
