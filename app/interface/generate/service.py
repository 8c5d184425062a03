"""What every route works with: the served models, the worker table and the settings. It knows no path."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from app.interface.generate.planning.limits import Limits
from app.interface.request import errors
from app.interface.request.access_log import AccessLog
from app.interface.request.observers import Observe
from app.interface.request.traces import Traces
from app.interface.text.chat_model import ChatModel
from app.messages.outputs import Generate
from app.messages.workers import WorkerRow


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients may name, and the way to its workers."""

    chat: ChatModel
    generate: Generate
    """`app.controller.worker_client.WorkerClient.generate`."""
    created: int
    """Unix seconds: when it was loaded."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The service's settings that concern HTTP."""

    limits: Limits
    max_body_bytes: int
    retry_after_s: int
    api_keys: tuple[str, ...] = ()
    """A client must send one of these; empty: every client is served."""
    max_open_requests: int = 512
    """Requests that may be open at once; further ones are refused (503). Probes are not counted."""
    allowed_hosts: tuple[str, ...] | None = None
    """Names by which clients may reach the service, besides those of `app.interface.http.hosts`. None: all of them
    where every request needs a key or a user, otherwise no further ones."""
    allowed_origins: tuple[str, ...] = ()
    """Web sites whose pages may use the service; see `app.interface.http.origins`."""
    behind_own_proxy: bool = False
    """Whether every request comes through our HAProxy; this and the next are for
    `app.interface.request.client_address`."""
    trusted_proxies: tuple[str, ...] = ()
    keep_alive_comment_s: float = 15.0
    """After so long without an event a stream has a comment, also before its first event; 0: never."""


@dataclass(frozen=True, slots=True)
class IngressFacts:
    """Which ingress this is, for who operates the service."""

    id: str
    node: str
    """The machine's name."""
    replicas: int
    """How many ingresses the service has."""
    version: str
    """Redoubt's."""
    up_since: float
    """Unix seconds."""


async def _models_stay() -> None:
    """For a service whose models are always the same."""


def _nobody_counts(model: str) -> None:
    """For a service without metrics."""


@dataclass(frozen=True, slots=True)
class Service:
    """Everything the routes need."""

    models: Mapping[str, ServedModel]
    workers: Callable[[], Sequence[WorkerRow]]
    settings: HttpSettings
    ingress: IngressFacts
    access_log: AccessLog | None = None
    """None: there is none."""
    traces: Traces | None = None
    """None: there are none."""
    follow_models: Callable[[], Awaitable[None]] = _models_stay
    """Brings `models` up to date, where a worker has said that one was replaced."""
    counting: Callable[[str], Observe | None] = _nobody_counts
    """Counts a model's sequences, for the metrics."""

    def model(self, name: str | None) -> ServedModel:
        """The model of that name; None: the first. Raises ApiError (404, or 503 where there is none at all)."""
        if name is None:
            first = next(iter(self.models), None)
            if first is None:
                raise errors.unavailable(self.settings.retry_after_s, "No model is served yet. Try again later.")
            name = first
        served = self.models.get(name)
        if served is None:
            raise errors.no_such_model(name)
        return served
