"""Every knob of the service, typed: an unknown or ill-typed one is refused by name before anything starts.

The same models check the `args` of our application (Ray hands them to `app.deploy.build`) and the whole Serve
config file, because Ray itself ignores top-level keys that it does not know. This file knows nothing of Ray,
and opens no model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.messages.defaults import PROMPT_CHUNK_TOKENS
from app.messages.model_card import ModelCard


class SettingsError(ValueError):
    """The configuration is wrong; the message names the file, the knob and the reason, one line each."""


class Knobs(BaseModel):
    """A group of settings: frozen, strictly typed, unknown names refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelSettings(Knobs):
    """Which model is served."""

    folder: str = Field(min_length=1)
    """A converted model (`redoubt convert`). A relative path is seen from where the service is started."""
    served_name: str | None = Field(default=None, min_length=1)
    """The name clients ask for; none: the folder's name."""

    on_overflow: Literal["refuse", "shift"] = "refuse"
    """Of requests that don't say: "refuse" what does not fit the context, or "shift": go on without the oldest tokens,
    but with the system prompt."""

    @property
    def name(self) -> str:
        """The name clients ask for."""
        return self.served_name or Path(self.folder).absolute().name


class EngineSettings(Knobs):
    """How a worker runs the model. Memory: the weights + kv_memory_bytes + activations of one step."""

    compute_type: Literal["auto", "int8", "bf16", "fp32"] = "auto"
    """Activations in the integer matrix products: "bf16", nearer to fp32, for processors with AMX; "int8" by group,
    with which a few cores there give up to five answers at a time faster, and more of them slower; "auto": "bf16" where
    the processor has AMX, else "int8"; or "fp32" (slow; for comparison)."""
    prompt_compute_type: Literal["auto", "same", "bf16"] = "auto"
    """The same of prompts, with their attention. "bf16": for processors with AMX, which compute prompts 1.5 to 3 times
    as fast with it as with int8; "auto": that, where it can be had; "same": as answers, so that not even the last bits
    of an answer depend on what of its prompt was cached."""
    kv_type: Literal["auto", "int16", "bf16", "int8", "fp32"] = "auto"
    """How keys and values are kept. "int16": 12 bits and a sign, with a scale per token and head; takes about 1 % more
    memory than "bf16", loses less, and is multiplied faster, except by AMX. "int8", with such scales too, fits nearly
    twice the tokens of either. "auto": "bf16" where prompt_compute_type makes prompts' attention that, else "int16"."""
    weight_memory: Literal["auto", "mapped", "huge_pages"] = "auto"
    """"mapped": the file's own pages, which all workers share. "huge_pages": a copy of each worker's own, on its node,
    for faster decoding. "auto": a copy, if memory suffices, where nodes are several or the file is in small pages."""
    kv_memory_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """Memory for keys and values, cut into pages. When it is full, the youngest request waits."""
    max_step_tokens: int = Field(default=512, ge=1, le=1 << 20)
    """Tokens of one step, all requests together: decoding ones first, then prompt chunks into the rest."""
    prompt_chunk_tokens: int = Field(default=PROMPT_CHUNK_TOKENS, ge=1, le=1 << 20)
    """The most prompt tokens of a step in which others wait for their next token."""
    prompt_pause_s: float = Field(default=0.2, gt=0, le=60)
    """How long prompts may hold up those others, about: a slow model takes smaller chunks. Learned as it runs."""
    max_context_tokens: int | None = Field(default=None, ge=16)
    """The longest prompt and output together; none: what the model was trained for."""

    guess_tokens: int = Field(default=16, ge=0, le=64)
    """The most tokens of an answer guessed at once, from what the conversation has said before; only where that pays.
    0: none."""
    prefix_cache: bool = True
    """Keep pages of prompts and answers while memory lasts: the same API key's next request that begins alike does not
    compute them. Without keys all callers count as one."""

    @model_validator(mode="after")
    def _chunk_fits_step(self) -> Self:
        if self.prompt_chunk_tokens > self.max_step_tokens:
            raise ValueError("prompt_chunk_tokens is more than max_step_tokens")
        return self


class AutoscalingSettings(Knobs):
    """Workers come and go with the load (running and waiting requests)."""

    min_workers: int = Field(default=1, ge=1)
    """Workers that stay when nothing is asked."""
    max_workers: int = Field(ge=1)
    """The most workers."""
    target_ongoing_requests: float = Field(default=16.0, gt=0)
    """Requests per worker that scaling aims at: more of them call for another worker."""
    upscale_delay_s: float = Field(default=10.0, ge=0)
    """How long the load must be too high before a worker is added."""
    downscale_delay_s: float = Field(default=300.0, ge=0)
    """How long the load must be low before a worker goes."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError("min_workers is more than max_workers")
        return self


class WorkerSettings(Knobs):
    """A worker owns one engine on one NUMA node's cores, or on a share of them."""

    count: int = Field(default=1, ge=1)
    """How many workers; not used where `autoscaling` is given."""
    autoscaling: AutoscalingSettings | None = None
    """Workers come and go with the load; none: `count` workers, always."""
    numa: Literal["node", "all"] = "node"
    """"node": a worker has one NUMA node's cores, or a share. "all": one worker has all nodes of its machine, and each
    node computes its own slice of every weight, from its own memory: for few streams, or large models."""
    cpus_per_worker: int | None = Field(default=None, ge=1)
    """Cores of a worker, all on one node; none: a whole NUMA node. No two workers share a core."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads; none: one per core. Fewer leave cores to the ingress and to Ray."""
    bind_memory: bool = True
    """Allocate on the worker's own NUMA node only; with numa "all": slices on their nodes, the rest in turns on all."""
    max_concurrent_requests: int = Field(default=32, ge=1, le=4096)
    """N: requests the engine works on at once. The next wait in the worker's queue."""
    max_queued_requests: int = Field(default=64, ge=0, le=65536)
    """Places in the worker's queue. If all queues are full a client is told to try again later (429)."""
    ray_num_cpus: float = Field(default=1.0, ge=0)
    """Ray's logical CPUs a worker reserves: placement only, it binds nothing."""
    ray_resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources a worker reserves, such as {"numa_node": 1.0}: one worker per such resource."""
    heartbeat_period_s: float = Field(default=1.0, ge=0.1, le=60)
    """How often a worker reports to the controller."""
    warm_up_prompt_tokens: int = Field(default=128, ge=1)
    """Prompt of the warm-up, which also measures the worker's speed."""
    warm_up_new_tokens: int = Field(default=16, ge=2)
    """Tokens generated in the warm-up."""
    drain_timeout_s: float = Field(default=20.0, ge=0)
    """How long a worker that has to go may finish its requests."""
    health_check_period_s: float = Field(default=5.0, gt=0)
    """How often Ray Serve asks a worker whether it is well."""
    health_check_timeout_s: float = Field(default=30.0, gt=0)
    """A worker that does not answer its health check for so long is replaced."""

    @model_validator(mode="after")
    def _spanning_worker_has_all_cores(self) -> Self:
        if self.numa == "all" and self.cpus_per_worker is not None:
            raise ValueError('cpus_per_worker is for numa "node": a worker of all nodes has all their cores')
        return self


class RouterSettings(Knobs):
    """How the controller chooses a worker for a request."""

    policy: Literal["LOTTERY", "SHORTEST_QUEUE"] = "SHORTEST_QUEUE"
    """LOTTERY: with probability speed / sum(speed). SHORTEST_QUEUE: the least queue_length / speed."""
    expiration_s: float = Field(default=10.0, gt=0)
    """EXPIRATION: a worker that has not reported for so long gets no request until it reports again."""
    forget_after_s: float = Field(default=60.0, ge=0)
    """How long a worker that is gone stays visible in the worker table."""


class IngressSettings(Knobs):
    """The HTTP side: how many replicas, and what a request gets that does not say."""

    count: int = Field(default=1, ge=1)
    """Ingress replicas. With more than one the chat page needs sticky sessions; the API does not."""
    ray_num_cpus: float = Field(default=0.1, ge=0)
    """Ray's logical CPUs an ingress replica reserves: placement only."""
    max_ongoing_requests: int = Field(default=512, ge=1)
    """HTTP requests one ingress replica holds open at once."""
    default_max_tokens: int = Field(default=1024, ge=1)
    """Output tokens of a request that names no limit (less where the context is full before)."""
    max_choices: int = Field(default=8, ge=1)
    """The largest `n`."""
    max_beams: int = Field(default=8, ge=1)
    """The largest `num_beams`, and `top_k` of contrastive search; no more than `max_concurrent_requests` either."""
    retry_after_s: int = Field(default=1, ge=1)
    """Retry-After of a 429 or 503."""
    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """The largest request body; a larger one is refused (413), and what still comes of it thrown away."""
    model_search_period_s: float = Field(default=10.0, ge=0.1, le=3600)
    """How often the front door looks for other models' applications that have come or gone."""
    api_key_file: str | None = None
    """A file of keys, one a line; clients must show one (`Authorization: Bearer <key>`); none: none is asked for."""


class WorkersSettings(Knobs):
    """The `args` of a further model's application, which has workers only: what `app.deploy.build_model` needs."""

    model: ModelSettings
    engine: EngineSettings = Field(default_factory=EngineSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    router: RouterSettings = Field(default_factory=RouterSettings)

    def model_card(self) -> ModelCard:
        """What these workers tell an ingress of their model."""
        folder = str(Path(self.model.folder).absolute())
        return ModelCard(self.model.name, folder, self.engine.max_context_tokens, self.model.on_overflow)

    @model_validator(mode="after")
    def _expiration_outlives_heartbeats(self) -> Self:
        if self.router.expiration_s < 3 * self.worker.heartbeat_period_s:
            raise ValueError("router.expiration_s is less than three times worker.heartbeat_period_s")
        return self

    @model_validator(mode="after")
    def _step_advances_every_request(self) -> Self:
        if self.engine.max_step_tokens < self.worker.max_concurrent_requests:
            raise ValueError("engine.max_step_tokens is less than worker.max_concurrent_requests")
        return self


class ServiceSettings(WorkersSettings):
    """The `args` of our application: everything that `app.deploy.build` needs."""

    ingress: IngressSettings = Field(default_factory=IngressSettings)


def parse_settings(values: Mapping[str, Any]) -> ServiceSettings:
    """The application's `args` as settings. Raises SettingsError naming each wrong knob."""
    return validated(ServiceSettings, values, "args")


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: Mapping[str, Any], source: str) -> Model:
    """The values as settings. Raises SettingsError: the source, each wrong knob and why, a line each."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [f"{source}: {_knob(e['loc'])}: {_reason(e['type'], e['msg'])}" for e in error.errors()]
        raise SettingsError("\n".join(lines)) from error


def _knob(location: Sequence[str | int]) -> str:
    # An application's import_path stands in its location, because it says which knobs there are.
    parts = [str(part) for part in location if not str(part).startswith("app.deploy:")]
    return ".".join(parts) or "settings"


def _reason(kind: str, message: str) -> str:
    return "there is no such knob" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
