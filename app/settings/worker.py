"""The settings of a model's workers: engine, cores, saved pages, sleep."""

from typing import Literal, Self

from pydantic import Field, model_validator

from app.messages.defaults import PROMPT_CHUNK_TOKENS, STEP_TOKENS
from app.settings.knobs import Knobs


class EngineSettings(Knobs):
    """How a worker runs the model. It needs memory for the weights, kv_memory_bytes and the activations of a step."""

    compute_type: Literal["auto", "int8", "bf16", "fp32"] = "auto"
    """The type of activations in matrix products with quantized weights. "bf16": closest to fp32, for processors with
    AMX. "int8": one scale per group; on AMX processors with few cores faster for up to five concurrent answers, and
    slower for more. "fp32": slow, for comparison. "auto": "bf16" if the processor has AMX, otherwise "int8"."""
    prompt_compute_type: Literal["auto", "same", "bf16"] = "auto"
    """The type of activations in prefill, including attention. "bf16": for processors with AMX, where prefill is 1.5 to
    3 times as fast with it as with int8. "same": as `compute_type`, so that an answer is the same to the last bit
    whether its prompt was cached or not. "auto": "bf16" where that is possible, otherwise "same"."""
    kv_type: Literal["auto", "int16", "bf16", "int8", "fp32"] = "auto"
    """The type of the KV cache. "int16": 12 bits and a sign, with a scale per token and head; takes about 1 % more
    memory than "bf16", is more exact, and faster except with AMX. "int8": such scales too, and room for nearly twice as
    many tokens. "fp32": for comparison. "auto": "bf16" if prefill attention runs in bf16, otherwise "int16"."""
    weight_memory: Literal["auto", "mapped", "huge_pages"] = "auto"
    """Where a worker reads the weights. "mapped": from the file's pages in memory, which all workers share.
    "huge_pages": from its own copy on its NUMA node, for faster decoding. "auto": a copy if there is enough memory, and
    the machine has several nodes or keeps the file in small pages. Of a sealed model each worker has a copy."""
    kv_memory_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """Memory of the KV cache, divided into pages. When it is full, the youngest request is preempted. Of a model with
    recurrent states at most half of it is for the states of running requests: fewer run at a time if they need more."""
    max_step_tokens: int | None = Field(default=None, ge=1, le=1 << 20)
    """The most tokens in one engine step: one for each decoding request, and the rest for prompts. none: 512; of a
    model with experts so many that each expert gets 64, but at most 2048."""
    prompt_chunk_tokens: int = Field(default=PROMPT_CHUNK_TOKENS, ge=1, le=1 << 20)
    """The most prompt tokens in a step while other requests decode."""
    prompt_pause_s: float = Field(default=0.2, gt=0, le=60)
    """About how long prompt tokens may delay the next token of decoding requests. The engine measures its speed and
    takes smaller chunks of a slow model's prompts."""
    max_context_tokens: int | None = Field(default=None, ge=16)
    """The most tokens of prompt and answer together; none: as many as the model was trained for."""

    guess_tokens: int = Field(default=16, ge=0, le=64)
    """Speculative decoding: the most tokens to guess at once from the conversation so far, as long as guesses pay off.
    0: none."""
    draft_tokens: int = Field(default=8, ge=0, le=16)
    """The most tokens that `model.draft`, or the model's own layer of multi-token prediction, drafts at once for an
    answer, as long as they pay off. 0: none, and that layer is left out of memory and steps."""
    prefix_cache: bool = True
    """Keep pages of prompts and answers as long as there is memory, so that a later request with the same beginning and
    the same API key does not compute it again. Without keys all callers share their pages."""

    @property
    def least_step_tokens(self) -> int:
        """`max_step_tokens`, whatever the model is."""
        return STEP_TOKENS if self.max_step_tokens is None else self.max_step_tokens

    @model_validator(mode="after")
    def _chunk_fits_step(self) -> Self:
        if self.prompt_chunk_tokens > self.least_step_tokens:
            raise ValueError("prompt_chunk_tokens is more than max_step_tokens")
        return self


class AutoscalingSettings(Knobs):
    """The number of workers follows the load (running and waiting requests)."""

    min_workers: int = Field(default=1, ge=1)
    """The fewest workers, also without any load."""
    max_workers: int = Field(ge=1)
    """The most workers."""
    target_ongoing_requests: float = Field(default=16.0, gt=0)
    """Running and waiting requests per worker to aim at, without those of batches: with more a worker is added, with
    fewer one is removed. A batch alone keeps one worker."""
    upscale_delay_s: float = Field(default=10.0, ge=0)
    """How long the load must be too high before a worker is added."""
    downscale_delay_s: float = Field(default=300.0, ge=0)
    """How long the load must be too low before a worker is removed."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError("min_workers is more than max_workers")
        return self


class WorkerSettings(Knobs):
    """A worker runs one engine on the cores of one NUMA node, or on some of them."""

    count: int = Field(default=1, ge=1)
    """The number of workers; ignored if `autoscaling` is given."""
    autoscaling: AutoscalingSettings | None = None
    """Lets the number of workers follow the load; none: always `count` workers."""
    numa: Literal["node", "all"] = "node"
    """"node": a worker has the cores of one NUMA node, or some of them. "all": one worker has all nodes of its machine,
    and each node computes its slice of every weight from its own memory; for few concurrent answers or large models.
    "all" never ran on two sockets: its tests pretend that a machine has two nodes."""
    cpus_per_worker: int | None = Field(default=None, ge=1)
    """Cores of a worker, all on one NUMA node; none: all cores of a node, or equal shares where a machine may have more
    workers (`count`, `autoscaling.max_workers`) than nodes. Workers with `ray_resources` have a node each. No two
    workers share a core, but for a worker and the one that takes its place (`surge`)."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads; none: one per core. Fewer leave cores to the ingress and to Ray."""
    bind_memory: bool = True
    """Allocate memory on the worker's own NUMA node only. With numa "all": slices of weights on their nodes, everything
    else interleaved over all nodes. Where a container may not (set_mempolicy and mbind are refused), the worker logs a
    warning and goes on without: `memory_bound` of `GET /v1/workers` is false."""
    max_concurrent_requests: int = Field(default=32, ge=1, le=4096)
    """N: the requests that the engine computes at the same time. More wait in the worker's queue."""
    max_queued_requests: int = Field(default=64, ge=0, le=65536)
    """Places in the worker's queue. If the queues of all workers are full, a request is refused (429)."""
    ray_num_cpus: float = Field(default=1.0, ge=0)
    """Logical CPUs that Ray reserves for a worker. They decide on placement only, not on which cores it runs."""
    ray_resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources that a worker reserves. {"numa_node": 1.0} allows one worker per such resource."""
    heartbeat_period_s: float = Field(default=1.0, ge=0.1, le=60)
    """How often a worker reports its state to the controller."""
    warm_up_prompt_tokens: int = Field(default=128, ge=1)
    """Prompt tokens of the warm-up, which also measures the worker's speed."""
    warm_up_new_tokens: int = Field(default=16, ge=2)
    """Tokens generated in the warm-up."""
    drain_timeout_s: float = Field(default=20.0, ge=0)
    """How long a worker that is being removed may take to finish its requests."""
    surge: bool | None = None
    """In a rolling change within one Ray Serve (a cluster's): true: a new worker is up before an old one goes, so for a
    time there is one more, which needs its Ray resources and as much memory once more, and shares the old one's cores
    if no others are free. false: an old one ends first. none: true where there may be a single worker, if each of its
    `ray_resources` is at most 0.5, so that a node has them twice, or `autoscaling` may add another worker."""
    health_check_period_s: float = Field(default=5.0, gt=0)
    """How often Ray Serve checks a worker's health."""
    health_check_timeout_s: float = Field(default=30.0, gt=0)
    """A worker that does not answer a health check within this time is replaced."""

    @property
    def most(self) -> int:
        """The most workers that there may be at a time."""
        return self.count if self.autoscaling is None else self.autoscaling.max_workers

    @property
    def surges(self) -> bool:
        """Whether a rolling change begins with a new worker: `surge`, or its default."""
        if self.surge is not None:
            return self.surge
        if self.autoscaling is not None:
            return self.autoscaling.min_workers == 1 and self.autoscaling.max_workers > 1
        return self.count == 1 and all(amount <= 0.5 for amount in self.ray_resources.values())

    @model_validator(mode="after")
    def _spanning_worker_has_all_cores(self) -> Self:
        if self.numa == "all" and self.cpus_per_worker is not None:
            raise ValueError('cpus_per_worker is for numa "node": a worker of all nodes has all their cores')
        return self


class MemorySettings(Knobs):
    """Pages of keys and values on disk, so that a user's chat goes on after a restart without being computed again.

    It needs `accounts`: requests of users have saved pages, those of guests have none (docs/memory.md).
    """

    folder: str | None = Field(default=None, min_length=1)
    """The folder of saved pages, encrypted for each user; all workers may share it, also over a network. none: no page
    is saved."""
    bytes: int = Field(default=64 << 30, ge=1 << 20)
    """The most that the files of all users take. When it is full, the pages unused for longest go."""
    bytes_per_user: int = Field(default=8 << 30, ge=1 << 20)
    """The most that one user's files take."""
    ttl_days: float = Field(default=30.0, gt=0)
    """How long pages that nobody uses are kept."""
    save: Literal["idle", "logout", "never"] = "idle"
    """"idle": when a chat has had no request for `save_after_s`, at logout, and when a worker is removed. "logout":
    only at logout and when a worker is removed. "never": pages are read but not saved."""
    save_after_s: float = Field(default=30.0, ge=0)
    """How long a chat must be idle before its pages are saved."""
    restore: Literal["auto", "always", "never"] = "auto"
    """"auto": pages are loaded where that is expected to be faster than computing them; both are measured. "always":
    wherever there are any, though a disk that hangs then costs each request 10 s. "never": nothing is loaded."""
    min_tokens: int = Field(default=64, ge=1)
    """The fewest tokens that are worth loading."""
    threads: int = Field(default=2, ge=1, le=64)
    """Threads of a worker that read and write pages; each needs memory for two pages."""
    write_bytes_per_s: float | None = Field(default=float(8 << 20), gt=0)
    """The most that a worker writes in a second while it computes answers, so that they do not slow down. Without any,
    at logout and when the worker is removed it writes as fast as it can. none: no limit."""


class SleepSettings(Knobs):
    """A model that nobody uses gives its memory and its cores to others, and wakes for its next request.

    It stays in `GET /v1/models`. Its weights are left to the system's page cache, so waking takes about a second
    while they are there. Models that may sleep share cores: while one computes a step, the others wait.
    """

    after_s: float | None = Field(default=None, gt=0)
    """How long after its last request a model falls asleep; sooner if another one needs the memory. none: never."""
    awake_bytes: int | None = Field(default=None, ge=1)
    """The most memory that all models of a machine may take that are awake. One that wakes puts others to sleep, the
    longest unused first, and waits up to 60 s for one that is busy. none: nine tenths of the machine's memory."""
