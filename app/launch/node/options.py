"""A node's start options: from the command line, and from variables that Kubernetes and KubeRay set.

Knows names and defaults, and checks no machine.
"""

import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.launch.node.confidential import INNER_DASHBOARD_PORT, Confidential, confidential
from app.launch.node.roles import Cores, Role
from app.settings.knobs import SettingsError

GCS_PORT = 6379
DASHBOARD_PORT = 8265
AGENT_PORT = 52365
METRICS_PORT = 8080
_ELSEWHERE = "192.0.2.1:9"
"""An address for documentation (RFC 5737): no host has it, but the default route leads to it."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A node's role, addresses and limits."""

    role: Role
    head_address: str
    """host:port of the cluster's GCS."""
    address: str
    """The address at which other nodes reach this one."""
    cores: Cores
    models: tuple[Path, ...]
    """Folders of converted models, and sealed models, that must exist before the node joins."""
    health_port: int
    http_port: int
    """Port of Serve's proxy on this node."""
    drain_timeout_s: float
    """How long a worker's node may take to finish its requests after SIGTERM."""
    tls_authority: Path | None
    """A folder with `ca.crt` and `ca.key`; None: no TLS between nodes, unless the node is confidential."""
    confidential: Confidential | None = None
    """How it attests itself to others; None: not confidential."""

    @property
    def dashboard(self) -> tuple[str, int]:
        """Address of Ray's dashboard on a head: on loopback behind the Serve gate, if the node is confidential."""
        if self.confidential is None:
            return self.address, DASHBOARD_PORT
        return "127.0.0.1", INNER_DASHBOARD_PORT


def node_options(
    role: Role,
    environment: Mapping[str, str],
    *,
    address: str | None,
    cores: Cores,
    models: tuple[Path, ...],
    health_port: int,
    http_port: int,
    drain_timeout_s: float,
    tls_authority: Path | None,
) -> NodeOptions:
    """Completes the options with the environment's addresses. Raises SettingsError.

    KubeRay sets FQ_RAY_IP (the head's service) and RAY_PORT; the pod's own address is POD_IP or MY_POD_IP.
    """
    secret = confidential(role, environment)
    if secret is not None:
        if tls_authority is not None:
            raise SettingsError("--tls-ca: a confidential cluster's head is its own authority: leave it out")
        http_port = secret.config.service.http_options.port
    own = environment.get("POD_IP") or environment.get("MY_POD_IP")
    head = address or environment.get("FQ_RAY_IP") or environment.get("RAY_ADDRESS")
    if role is Role.HEAD:
        own = own or _own_address()
        head = f"{own}:{environment.get('RAY_PORT', GCS_PORT)}"
    elif not head:
        raise SettingsError("a worker needs the head's address: --address HOST:6379, or FQ_RAY_IP in the environment")
    elif ":" not in head:
        head = f"{head}:{environment.get('RAY_PORT', GCS_PORT)}"
    return NodeOptions(
        role=role,
        head_address=head,
        address=_checked(own) if own else _address_towards(head),
        cores=cores,
        models=models,
        health_port=health_port,
        http_port=http_port,
        drain_timeout_s=drain_timeout_s,
        tls_authority=tls_authority,
        confidential=secret,
    )


def _checked(address: str) -> str:
    """Checks an address from the environment, which is written into programs' files as it is. Raises SettingsError."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError as error:
        raise SettingsError(f"POD_IP: {address!r} is no IP address") from error
    return str(ipaddress.ip_address(found.packed))  # drop the zone of an IPv6 address, which may have any content


def _own_address() -> str:
    """This machine's address for other nodes. Raises SettingsError.

    In a pod the host name resolves to it. Elsewhere /etc/hosts often maps the name to loopback; then it is the address
    on the default route.
    """
    with suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
        if not ipaddress.ip_address(named).is_loopback:
            return named
    try:
        return _address_towards(_ELSEWHERE)
    except SettingsError as error:
        raise SettingsError("which address of this machine do other machines reach? set POD_IP to it") from error


def _address_towards(head: str) -> str:
    """This machine's address on the route to the head; sends nothing. Raises SettingsError."""
    host, _, port = head.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise SettingsError(f"there is no way to the head at {head}: {error}; set POD_IP") from error
