"""The settings of what is in front of the workers: HTTP, the choice of a worker, evidence for clients."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from app.settings.knobs import Knobs


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
