"""Every knob of the service, typed: one that does not exist or has the wrong type is refused by name.

The same classes check the `args` of our applications, which Ray passes to `app.deploy`, and as part of
`app.launch.config_file` the whole Serve configuration file, because Ray ignores top-level keys that it does not know.
The docstrings below the fields are the table of docs/configuration.md. This file knows nothing of Ray and opens no
model.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.messages.defaults import PROMPT_CHUNK_TOKENS, SHORT_THINKING_TOKENS, STEP_TOKENS
from app.messages.model_card import ModelCard

ATTESTED_FRONT = "REDOUBT_ATTESTED_FRONT"
"""The environment variable of a service with a front that shows evidence. `app.deploy` insists on it."""
RAY_FOLDER = "REDOUBT_RAY"
"""The environment variable with the folder of one Ray of `redoubt serve`: its number, in the service's folder."""
KEPT = "REDOUBT_KEPT"
"""The environment variable with the path of an anonymous file in the memory of the main process of `redoubt serve`."""
HELD_PORTS = "REDOUBT_HELD_PORTS"
"""The environment variable of a Ray whose ingresses get ports that the main process holds."""

OWN_PROXY = "REDOUBT_OWN_PROXY"
"""The environment variable of a Ray whose ingresses get all requests through an HAProxy as we configure it."""


class SettingsError(ValueError):
    """The configuration is wrong. The message has a line for each mistake: the file, the knob and the reason."""


class Knobs(BaseModel):
    """A group of settings: frozen, strictly typed, unknown names refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def first_twice(names: Iterable[str]) -> str | None:
    """Returns the first name that was there before; None: each is its own."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


class ModelSettings(Knobs):
    """Which model is served: a folder, or a sealed model and its key.

    A file for `redoubt serve` may have `name` in place of `folder`: a model's name as `redoubt pull` takes it, such as
    `Qwen/Qwen3-4B`. What is not in the store is fetched at the start; while the service runs, it is not.
    """

    folder: str | None = Field(default=None, min_length=1)
    """The folder of a converted model (`redoubt convert`), absolute or relative to where the service is started."""
    sealed: str | None = Field(default=None, min_length=1)
    """A sealed model (`redoubt seal`), instead of a folder: a block device or a file."""
    key: str | None = Field(default=None, pattern="^(file|kbs):///.")
    """Where the key of the sealed model comes from. file:///PATH, or kbs:///REPOSITORY/TYPE/TAG, which a confidential
    container gets once it has proved what it is."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """The digest of the sealed model, which `redoubt seal` prints: another one is refused. none: any model that the key
    opens and that was sealed under this name."""
    served_name: str | None = Field(default=None, min_length=1)
    """The model's name in the API; none: the folder's name. A sealed model needs it: the name that it was sealed
    under."""

    aliases: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(default_factory=list)
    """Other names by which requests may ask for the model, such as those that a client has built in. `GET /v1/models`
    lists it once, with them."""
    chat_template: str | None = Field(default=None, min_length=1)
    """The file of a chat template (Jinja), instead of the model's own; none: the model's. A model without one serves
    completions only."""
    on_overflow: Literal["refuse", "shift"] = "refuse"
    """What happens when the context is full, for requests that say nothing about it. "refuse": a prompt that does not
    fit is refused, and an answer ends. "shift": a chat loses its oldest turns, an answer its oldest tokens."""
    thinking: Literal["off", "short", "full"] | None = None
    """How much the model thinks before it answers a request that says nothing about it: not at all, at most
    `short_thinking_tokens`, or as long as it likes; none: as its chat template does. Without effect on a model that
    does not think."""
    short_thinking_tokens: int = Field(default=SHORT_THINKING_TOKENS, ge=1, le=1 << 20)
    """The most tokens of a "short" thought, also where a person chooses it in the page or the terminal."""
    draft: str | None = Field(default=None, min_length=1)
    """A smaller model with the same vocabulary that drafts this one's answers: the folder of a converted model, in a
    file for `redoubt serve` also its name. Answers stay the same, token by token, and come faster; it runs in the same
    workers, with a part of `engine.kv_memory_bytes`. none: nothing but what is looked up (`engine.guess_tokens`)."""

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.served_name or self.path.name

    @property
    def names(self) -> tuple[str, ...]:
        """All of its names in the API."""
        return self.name, *self.aliases

    @property
    def path(self) -> Path:
        """The absolute path of the folder, or of the sealed model."""
        return Path(self.folder or self.sealed or "").absolute()

    def absolute(self) -> Self:
        """The same model, whatever the current folder is."""
        place = {"folder": str(self.path)} if self.sealed is None else {"sealed": str(self.path)}
        template = None if self.chat_template is None else str(Path(self.chat_template).absolute())
        draft = None if self.draft is None else str(Path(self.draft).absolute())
        return self.model_copy(update={**place, "served_name": self.name, "chat_template": template, "draft": draft})

    @model_validator(mode="after")
    def _is_one_model(self) -> Self:
        if (self.folder is None) == (self.sealed is None):
            raise ValueError("needs either folder or sealed")
        if self.sealed is None and (self.key is not None or self.sha256 is not None):
            raise ValueError("key and sha256 are for a sealed model")
        if self.sealed is not None and self.chat_template is not None:
            raise ValueError("chat_template is for a folder: a sealed model has its template sealed with it")
        if self.sealed is not None and (self.key is None or self.served_name is None):
            raise ValueError("a sealed model needs key, and served_name: the name that it was sealed under")
        if (twice := first_twice(self.names)) is not None:
            raise ValueError(f"aliases: {twice!r} is already a name of this model")
        return self


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


class RouterSettings(Knobs):
    """How the controller chooses a worker for a request."""

    policy: Literal["LOTTERY", "SHORTEST_QUEUE"] = "SHORTEST_QUEUE"
    """LOTTERY: a random worker, with probability speed / sum(speed). SHORTEST_QUEUE: the one with the smallest
    queue_length / speed; where several ingresses send to the same workers, it is drawn from those near the smallest."""
    expiration_s: float = Field(default=10.0, gt=0)
    """EXPIRATION: a worker that has not reported for this time gets no requests until it reports again."""
    forget_after_s: float = Field(default=60.0, ge=0)
    """How long a lost worker stays in the worker table (`GET /v1/workers`)."""
    wait_for_worker_s: float = Field(default=30.0, ge=0)
    """How long a request waits while no worker is up, before it is refused (503). An answer that has begun waits ten
    times as long."""


def _host_name(text: str) -> str:
    if re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", text) is None:
        raise ValueError("this is no host name: it has neither https:// nor a port, as in chat.example.com")
    return text


def _network(text: str) -> str:
    """Raises ValueError."""
    ipaddress.ip_network(text)
    return text


def _origin(text: str) -> str:
    """As browsers write it. Raises ValueError."""
    if re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", text) is None:
        raise ValueError("this is no origin: it has a scheme, small letters and no path, as in https://app.example.com")
    default = {"http": ":80", "https": ":443"}.get(text.partition(":")[0])
    return text if default is None else text.removesuffix(default)


class IngressSettings(Knobs):
    """The HTTP interface: its replicas, its limits, and defaults of requests."""

    count: int = Field(default=1, ge=1)
    """Ingress replicas. None keeps anything of a conversation but background answers, for a minute after their end."""
    max_per_node: int | None = Field(default=None, ge=1)
    """The most ingress replicas on one node of a cluster; none: no limit. With 1, replicas are on different nodes."""
    ray_num_cpus: float = Field(default=0.1, ge=0)
    """Logical CPUs that Ray reserves for an ingress replica. They decide on placement only."""
    max_ongoing_requests: int = Field(default=512, ge=1)
    """The most HTTP requests that one ingress replica handles at the same time."""
    default_max_tokens: int = Field(default=1024, ge=1)
    """The most output tokens of a request that sets no limit itself; fewer if the context is full before."""
    max_choices: int = Field(default=8, ge=1)
    """The largest `n` of a request."""
    max_beams: int = Field(default=8, ge=1)
    """The largest `num_beams` of a request, and the largest `top_k` of contrastive search; `max_concurrent_requests`
    limits both too."""
    retry_after_s: int = Field(default=1, ge=1)
    """The Retry-After header of a 429 or 503, in seconds."""
    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """The largest request body. A larger one is refused (413), and the rest of it is discarded."""
    document_bytes: int = Field(default=32 << 20, ge=1024, le=1 << 30)
    """The largest file that is read for a prompt. One in a request's body is also bounded by `max_body_bytes`."""
    document_seconds: int = Field(default=30, ge=1, le=3600)
    """How long a processor may compute to read one. A file that takes longer is refused."""
    model_search_period_s: float = Field(default=10.0, ge=0.1, le=3600)
    """How often the ingress looks for applications of further models that have been added or removed."""
    api_key_file: str | None = None
    """A file of API keys, one per line. Clients must send one (`Authorization: Bearer <key>`); none: no key needed."""
    access_log_folder: str | None = Field(default=None, min_length=1)
    """A folder for the access log: a line of JSON for each request, in a file for each ingress; it has ids, counts and
    times, and never a text (docs/operations.md). `redoubt serve --log-dir` sets it. none: no access log."""
    access_log_bytes: int = Field(default=256 << 20, ge=1 << 16)
    """The most that the access log of one ingress takes. Then its oldest quarter goes."""
    allowed_hosts: list[Annotated[str, AfterValidator(_host_name)]] | None = None
    """Names by which clients reach the service, without a port; others are refused (421), so that no web site can pass
    the service off as itself. "*.example.com": all names below that one; "*": all names. Addresses, `localhost`, names
    without a dot and the machine's own need not be listed. none: all names where every request needs a key or a user,
    otherwise only those."""
    allowed_origins: list[Annotated[str, AfterValidator(_origin)]] = Field(default_factory=list)
    """Web sites whose pages may use the API from a browser (CORS), such as "https://app.example.com"; "*": all sites,
    which then reach a service without keys too. Cookies are never accepted from them."""
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(default_factory=list)
    """Addresses or networks, such as "127.0.0.1" or "10.0.0.0/8", of proxies in front of the service: what they add to
    `X-Forwarded-For` is taken for the client's address. Of all others that header means nothing."""
    keep_alive_comment_s: float = Field(default=15.0, ge=0, le=3600)
    """A stream without news for this time gets a comment, so that proxies and clients do not give it up. If its first
    token takes longer, the answer begins with status 200, and what fails later is an event. 0: never."""

    traces_endpoint: str | None = Field(default=None, pattern="^https?://[^/]+/?$")
    """An OpenTelemetry collector (OTLP over HTTP), such as "http://127.0.0.1:4318", which gets a trace of each request:
    what the access log has, and never a text. It needs `pip install 'redoubt[traces]'`. none: no traces."""

    def at_absolute_paths(self) -> Self:
        """The same for a process that runs in another folder."""
        given = {"access_log_folder": self.access_log_folder, "api_key_file": self.api_key_file}
        changes = {name: str(Path(path).absolute()) for name, path in given.items() if path is not None}
        return self.model_copy(update=changes)


class AttestationSettings(Knobs):
    """How clients verify this machine before they send a word; for `redoubt serve` on one machine."""

    evidence: Literal["none", "coco", "soft"] = "none"
    """"coco": quotes of the processor, from the agent of a confidential container. "soft": quotes that anybody can
    make, to try it out; needs REDOUBT_ALLOW_SOFT_EVIDENCE=1 in the environment. "none": no attestation."""
    tls_port: int = Field(default=8443, ge=1, le=65535)
    """Where clients connect with TLS, on the address of `http_options`, or the pod's on a cluster. The service itself
    then listens on loopback."""
    quote_timeout_s: float = Field(default=10.0, gt=0)
    """How long one quote may take."""
    collateral_file: str | None = None
    """A file with what Intel says of the platform, handed to clients with each quote; none: clients have it, or get it
    themselves. Nodes of a cluster need it to check each other. It is read at the start."""


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


class LimitSettings(Knobs):
    """What one user may take, unless an administrator has set the user's own limits."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests that ask a worker, in any 60 seconds, over all ingress replicas; none: no limit."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Prompt and output tokens of a day in UTC; none: no limit. A request that begins below the limit may end above."""
    concurrent: int | None = Field(default=None, ge=1)
    """Requests of a user at the same time; none: no limit."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """The most that saved pages of a user take. 0: none are saved; none: `memory.bytes_per_user` holds."""


class BatchSettings(Knobs):
    """Users' batches of requests, computed when nobody else asks, and the files with their lines and results."""

    file_bytes: int = Field(default=100 << 20, ge=1024)
    """The largest file that a user may upload."""
    bytes_per_user: int = Field(default=1 << 30, ge=0)
    """The most that one user's files take, encrypted: those uploaded and those with results. 0: there are none. A batch
    whose results find no room waits until its user deletes a file."""
    lines: int = Field(default=50_000, ge=1, le=1_000_000)
    """The most lines of a batch."""
    batches_per_user: int = Field(default=16, ge=1)
    """The most batches of a user that have not ended."""
    hours: int = Field(default=24, ge=1, le=24 * 365)
    """How long a batch may take. Then it is `expired`, with the results that it has."""
    days: int = Field(default=30, ge=1)
    """How long files are kept, unless their user says otherwise, and batches after their time."""
    lines_at_once: int = Field(default=32, ge=1, le=4096)
    """The most lines that an ingress replica has at the workers at the same time, of all users' batches."""


class AccountsSettings(Knobs):
    """Users, who log in or send an API key of their own. Without this section there are none."""

    database: str = Field(min_length=1)
    """The file of SQLite's database, which `redoubt user add --config` makes; or, for a cluster, the URL of a Postgres
    without a password, such as `postgresql+psycopg://redoubt@db.internal/redoubt` (libpq reads PGPASSFILE)."""
    key: str = Field(pattern=r"^(file|cdh):.")
    """Where the server's own key is: `file:<path>` (`redoubt keygen` makes one), or in a confidential guest
    `cdh:<repository>/<type>/<tag>`. Without that key nothing in the database opens."""
    guests: bool = False
    """Serve requests without a key or login too; guests share their cached pages, and no limit of a user's holds."""
    session_idle_s: int = Field(default=14 * 86_400, ge=60)
    """A session ends when it was not used for so long."""
    session_max_s: int = Field(default=90 * 86_400, ge=60)
    """A session ends so long after its login."""
    revocation_s: float = Field(default=5.0, gt=0, le=60)
    """The longest time for which an ingress goes on to accept a credential that was revoked."""
    login_failures: int = Field(default=5, ge=1)
    """Wrong passwords for one name in a quarter of an hour, after which logins with that name are refused (429)."""
    first_password_days: int = Field(default=7, ge=1)
    """How long a password holds that an administrator has set for the first login."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Of every user without limits of the user's own."""
    stored_bytes_per_user: int = Field(default=256 << 20, ge=0)
    """The most that one user's stored conversations and responses take, encrypted. 0: nothing is stored."""
    batches: BatchSettings = Field(default_factory=BatchSettings)
    """Of every user."""
    responses_days: int = Field(default=30, ge=1)
    """How long a response that is in no conversation is stored."""
    audit_addresses_days: int = Field(default=90, ge=0)
    """How long the audit tells from which address a login came, or was refused. 0: never."""

    def at_absolute_paths(self) -> Self:
        """The same for a process that runs in another folder."""
        changes: dict[str, str] = {}
        if "://" not in self.database:
            changes["database"] = str(Path(self.database).absolute())
        if self.key.startswith("file:"):
            changes["key"] = f"file:{Path(self.key.removeprefix('file:')).absolute()}"
        return self.model_copy(update=changes)


class ModelApplicationSettings(Knobs):
    """The `args` of a model's application without an ingress: what `app.deploy.build_model` needs."""

    model: ModelSettings
    engine: EngineSettings = Field(default_factory=EngineSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    router: RouterSettings = Field(default_factory=RouterSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    sleep: SleepSettings = Field(default_factory=SleepSettings)

    def model_card(self) -> ModelCard:
        """How these workers describe their model to an ingress."""
        model = self.model
        return ModelCard(
            name=model.name,
            path=str(model.path),
            max_context_tokens=self.engine.max_context_tokens,
            on_overflow=model.on_overflow,
            key=model.key,
            chat_template=model.absolute().chat_template,
            sha256=model.sha256,
            thinking=model.thinking,
            short_thinking_tokens=model.short_thinking_tokens,
            aliases=tuple(model.aliases),
        )

    @model_validator(mode="after")
    def _expiration_outlives_heartbeats(self) -> Self:
        if self.router.expiration_s < 3 * self.worker.heartbeat_period_s:
            raise ValueError("router.expiration_s is less than three times worker.heartbeat_period_s")
        return self

    @model_validator(mode="after")
    def _saved_pages_are_cached_ones(self) -> Self:
        if self.memory.folder is not None and not self.engine.prefix_cache:
            raise ValueError("memory.folder: pages are saved from the prefix cache; engine.prefix_cache is false")
        return self

    @model_validator(mode="after")
    def _weights_of_sleepers_are_in_files(self) -> Self:
        if self.sleep.after_s is None:
            return self
        for why, is_copied in (
            ("model.sealed", self.model.sealed is not None),
            ("engine.weight_memory: huge_pages", self.engine.weight_memory == "huge_pages"),
            ("worker.numa: all", self.worker.numa == "all"),
        ):
            if is_copied:
                raise ValueError(f"sleep.after_s: with {why} weights are a copy in memory, which can't be given back")
        return self

    @model_validator(mode="after")
    def _step_advances_every_request(self) -> Self:
        if self.engine.least_step_tokens < self.worker.max_concurrent_requests:
            raise ValueError("engine.max_step_tokens is less than worker.max_concurrent_requests")
        return self


class ServiceSettings(ModelApplicationSettings):
    """The `args` of the application with the ingress: what `app.deploy.build` needs."""

    ingress: IngressSettings = Field(default_factory=IngressSettings)
    attestation: AttestationSettings = Field(default_factory=AttestationSettings)
    accounts: AccountsSettings | None = None

    @model_validator(mode="after")
    def _one_kind_of_keys(self) -> Self:
        if self.accounts is not None and self.ingress.api_key_file is not None:
            raise ValueError("ingress.api_key_file and accounts exclude each other: users have keys of their own")
        return self


def parse_settings(values: Mapping[str, Any]) -> ServiceSettings:
    """The `args` of the application with the ingress as settings. Raises SettingsError that names each wrong knob."""
    return validated(ServiceSettings, values, "args")


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: Mapping[str, Any], source: str) -> Model:
    """The values as settings. Raises SettingsError with a line for each wrong knob: source, knob, reason."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [f"{source}: {_knob(e['loc'])}: {_reason(e['type'], e['msg'])}" for e in error.errors()]
        raise SettingsError("\n".join(lines)) from error


def _knob(location: Sequence[str | int]) -> str:
    # Pydantic puts an application's import_path, which selects its class, into the location.
    parts = [str(part) for part in location if not str(part).startswith("app.deploy:")]
    return ".".join(parts) or "settings"


def _reason(kind: str, message: str) -> str:
    return "there is no such setting" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
