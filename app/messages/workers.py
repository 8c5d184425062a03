"""What workers report to the controller, and the table that the controller makes of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from app.messages.capacity import WorkerCapacity
from app.messages.model_card import ModelCard


@dataclass(frozen=True, slots=True)
class FoundApplication:
    """Another Serve application that has Redoubt's workers, or may have."""

    has_worker: bool
    """Whether a worker is up. If not, the application may be starting or failing."""


WorkerState = Literal["alive", "stale", "gone"]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker reports once, when it is ready (Ray Serve: replica metadata)."""

    node: str
    """The machine's name."""
    pid: int
    model: ModelCard
    speed: float
    """Tokens per second, prompt and output together, measured in the worker's warm-up."""
    cpus: tuple[int, ...]
    """The cores it is pinned to."""
    numa_node: int
    memory_bound: bool
    """Whether its memory comes from its own NUMA nodes only: `worker.bind_memory`, where the system allows it."""
    max_context_tokens: int
    """The longest prompt and output together."""
    tier: str
    """The instructions that its kernels use, such as "amx_int8"."""
    arithmetic: str
    """What the last bits of its results depend on beside the weights; workers with the same make the same tokens."""
    ready_since: int
    """Unix seconds by the worker's clock: when it had warmed up."""
    max_running: int
    """N: requests that it computes at a time."""
    max_waiting: int
    """Q: requests that may wait for that."""
    max_saved_bytes: int | None
    """The most that the files of its folder of saved pages take; None: it saves none."""
    capacity: WorkerCapacity | None = None
    """For the operator's calculator; None: not known."""

    def to_wire(self) -> dict[str, Any]:
        """As JSON types, as Ray Serve requires."""
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
        )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One heartbeat (Ray Serve: routing stats)."""

    heart_beat: float
    """Unix seconds by the worker's clock."""
    running: int
    """Requests in the engine."""
    waiting: int
    """Requests in the worker's queue."""
    kv_pages: int
    kv_pages_free: int
    kv_pages_cached: int = 0
    """Pages that a later prompt may find in the prefix cache."""
    computed_tokens: int = 0
    """Tokens that went through the model; since the start, like the next three."""
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    generated_tokens_per_s: float = 0.0
    """Over the last full second of work; 0 when idle."""
    admitted: int = 0
    """Requests that have had their places since the start."""
    queued_s: float = 0.0
    """How long all of them together have waited for that."""
    saved_bytes: int | None = None
    """What the files in its folder of saved pages take, of all workers that share it, as last counted; or unknown."""

    def to_wire(self) -> dict[str, Any]:
        """As JSON types, as Ray Serve requires."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> "WorkerReport":
        """Raises KeyError if a field is missing."""
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
    """Requests of the worker, running and waiting, as the router counts them now."""
    check_heart_beat: bool
    """Whether it reported within `expiration_s`; only then does it get requests."""
    last_heart_beat: float
    """Unix seconds by the worker's clock; 0 before the first report."""
    state: WorkerState
    running: int
    """Requests in the engine; of the last report, like the counts that follow."""
    waiting: int
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
    """The instructions that its kernels use, such as "amx_int8"."""
    ready_since: int
    """Unix seconds by the worker's clock."""
    max_running: int
    """Requests that it computes at a time."""
    max_waiting: int
    """Requests that may wait for that."""
    generated_tokens_per_s: float
    """Over the last full second of work; 0 when idle."""
    admitted: int
    """Requests that have had their places since the worker's start."""
    queued_s: float
    """How long all of them together have waited for that."""
    saved_bytes: int | None
    """What the files of its folder of saved pages take, of all workers that share it; None: unknown, or it has none."""
    max_saved_bytes: int | None
    """The most that they may take; None: it saves none."""
    capacity: WorkerCapacity | None = None
    """What its model demands, and its warm-up's times; None: not known."""
