"""Every knob of the service, typed: an unknown or ill-typed one is refused by name before anything starts.

The same models check the `args` of our application (Ray hands them to `app.deploy.build`) and the whole Serve
config file, because Ray itself ignores top-level keys that it does not know. This file knows nothing of Ray,
and opens no model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class SettingsError(ValueError):
    """The configuration is wrong; the message names the file, the knob and the reason, one line each."""


MIN_API_KEY_CHARACTERS = 16
MODEL_IMPORT_PATH = "app.deploy:build_model"


class _Knobs(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelSettings(_Knobs):
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


class EngineSettings(_Knobs):
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
    prompt_chunk_tokens: int = Field(default=256, ge=1, le=1 << 20)
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


class AutoscalingSettings(_Knobs):
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


class WorkerSettings(_Knobs):
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


class RouterSettings(_Knobs):
    """How the controller chooses a worker for a request."""

    policy: Literal["LOTTERY", "SHORTEST_QUEUE"] = "SHORTEST_QUEUE"
    """LOTTERY: with probability speed / sum(speed). SHORTEST_QUEUE: the least queue_length / speed."""
    expiration_s: float = Field(default=10.0, gt=0)
    """EXPIRATION: a worker that has not reported for so long gets no request until it reports again."""
    forget_after_s: float = Field(default=60.0, ge=0)
    """How long a worker that is gone stays visible in the worker table."""


class IngressSettings(_Knobs):
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


class WorkersSettings(_Knobs):
    """The `args` of a further model's application, which has workers only: what `app.deploy.build_model` needs."""

    model: ModelSettings
    engine: EngineSettings = Field(default_factory=EngineSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    router: RouterSettings = Field(default_factory=RouterSettings)

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


class HttpOptions(_Knobs):
    """Ray Serve's `http_options`: where the service listens."""

    host: str = "127.0.0.1"
    """The address the proxy listens on; the default is reachable from this machine only."""
    port: int = Field(default=8000, ge=1, le=65535)
    """The port of the API and the page."""
    request_timeout_s: float | None = Field(default=None, gt=0)
    """A request that takes longer is ended; none: no limit."""
    keep_alive_timeout_s: int = Field(default=60, ge=0)
    """How long an idle connection is kept open."""


class LoggingOptions(_Knobs):
    """Ray Serve's `logging_config`."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Of Ray Serve and its replicas."""
    encoding: Literal["TEXT", "JSON"] = "TEXT"
    """How a line of the log looks."""
    logs_dir: str | None = None
    """Where replicas write their logs; none: Ray's session folder."""
    enable_access_log: bool = True
    """One line per HTTP request at INFO: method, path, status, time."""


class ApplicationConfig(_Knobs):
    """The entry of Ray Serve's `applications` that has the front door, and one model's workers."""

    name: str = "redoubt"
    route_prefix: str = "/"
    import_path: Literal["app.deploy:build"]
    args: ServiceSettings
    runtime_env: dict[str, Any] = Field(default_factory=dict)


class ModelApplicationConfig(_Knobs):
    """A further entry: another model's workers. The front door finds them."""

    name: str = Field(min_length=1)
    route_prefix: None
    """Written out as null: Serve would give it a route otherwise."""
    import_path: Literal["app.deploy:build_model"]
    args: WorkersSettings
    runtime_env: dict[str, Any] = Field(default_factory=dict)


AnyApplicationConfig = Annotated[ApplicationConfig | ModelApplicationConfig, Field(discriminator="import_path")]


class ServiceConfig(_Knobs):
    """A whole config file: the knobs above, and of Ray Serve's own those that are named here."""

    proxy_location: Literal["HeadOnly", "EveryNode", "Disabled"] = "HeadOnly"
    http_options: HttpOptions = Field(default_factory=HttpOptions)
    logging_config: LoggingOptions = Field(default_factory=LoggingOptions)
    applications: list[AnyApplicationConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_front_door_and_no_name_twice(self) -> Self:
        if sum(isinstance(one, ApplicationConfig) for one in self.applications) != 1:
            raise ValueError("applications: exactly one has import_path app.deploy:build")
        for what, names in (
            ("name", [one.name for one in self.applications]),
            ("model name", [one.args.model.name for one in self.applications]),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"applications: two have the same {what}: {', '.join(names)}")
        return self

    @property
    def application(self) -> ApplicationConfig:
        """The one with the front door."""
        return next(one for one in self.applications if isinstance(one, ApplicationConfig))

    @property
    def model_applications(self) -> list[ModelApplicationConfig]:
        """The others, in the file's order."""
        return [one for one in self.applications if isinstance(one, ModelApplicationConfig)]


def parse_settings(values: Mapping[str, Any]) -> ServiceSettings:
    """The application's `args` as settings. Raises SettingsError naming each wrong knob."""
    return _validated(ServiceSettings, values, "args")


def load_config(path: Path) -> ServiceConfig:
    """Reads and checks a config file. Raises SettingsError naming the file and each wrong knob."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: not a mapping of knobs")
    return _validated(ServiceConfig, values, str(path))


def with_overrides(
    config: ServiceConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    model_folders: Sequence[str] = (),
) -> ServiceConfig:
    """The same configuration with what the command line says instead. Raises SettingsError.

    model_folders: replace the file's models; each beyond the first becomes an application of its own, with the front
    door's settings.
    """
    values = config.model_dump(exclude_unset=True)
    http = values.setdefault("http_options", {})
    if host is not None:
        http["host"] = host
    if port is not None:
        http["port"] = port
    if model_folders:
        # The names in the file are the other models'.
        front = config.application.model_dump(exclude_unset=True)
        front["args"]["model"] = {"folder": model_folders[0]}
        args = {name: knobs for name, knobs in front["args"].items() if name != "ingress"}
        values["applications"] = [front]
        for folder in model_folders[1:]:
            further = {"name": Path(folder).absolute().name, "route_prefix": None, "import_path": MODEL_IMPORT_PATH}
            values["applications"].append({**further, "args": {**args, "model": {"folder": folder}}})
    return _validated(ServiceConfig, values, "command line")


def core_share(config: ServiceConfig, node_cores: Sequence[int]) -> int | None:
    """Cores for each worker, where they are more than the machine's NUMA nodes and none says how many it wants.

    node_cores: of each node of this machine. None: each has a node, or what it says. Raises SettingsError if there are
    more workers than cores.
    """
    asked = [one.args.worker for one in config.applications]
    workers = sum(one.count if one.autoscaling is None else one.autoscaling.max_workers for one in asked)
    if workers <= len(node_cores) or any(one.cpus_per_worker is not None or one.numa == "all" for one in asked):
        return None
    share = min(node_cores) // -(-workers // len(node_cores))
    if share == 0:
        raise SettingsError(f"{workers} workers are more than the {sum(node_cores)} cores of this machine")
    return share


Model = TypeVar("Model", bound=BaseModel)


def _validated(model: type[Model], values: Mapping[str, Any], source: str) -> Model:
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


def read_api_keys(file: Path) -> tuple[str, ...]:
    """The keys in `file`: one per line, blank lines ignored; kept out of the configuration, which Ray logs.

    Raises SettingsError naming the file where it can't be read, has no key, or has one of under 16 characters.
    """
    try:
        keys = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"ingress.api_key_file {file}: {error}") from error
    if not keys:
        raise SettingsError(f"ingress.api_key_file {file}: there is no key in it")
    if any(len(key) < MIN_API_KEY_CHARACTERS for key in keys):
        raise SettingsError(f"ingress.api_key_file {file}: a key is shorter than {MIN_API_KEY_CHARACTERS} characters")
    return keys
