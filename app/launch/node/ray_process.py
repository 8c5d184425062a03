"""The Ray of one node: how `ray start` is called, with what environment, and how it is watched and ended.

`ray start --block` runs as a child process; its output is kept for the case that it fails. Imports no Ray itself.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from app.launch.cleanup import end_marked, processes_with
from app.launch.node.checks import NodeCores
from app.launch.node.options import AGENT_PORT, METRICS_PORT, NodeOptions
from app.launch.node.roles import Role
from app.launch.ray_environment import USE_HAPROXY, cluster_haproxy_environment, node_environment
from app.settings.environment import ATTESTED_FRONT, OWN_PROXY

_OBJECT_STORE_BYTES = 100 << 20
"""Small, because requests and tokens travel by value and hardly use Ray's object store."""
_LAST_LINES = 3
_PREFIX = re.compile(r"^[\d-]+ [\d:,]+\s+\w+ scripts\.py:\d+ -- ")
_PROXY_FOLDER = "redoubt-proxy"
_PROXY_CONFIG = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"
_END_TIMEOUT_S = 20.0
_IDLE_END_S = 5.0
"""How long a Ray without Serve processes may take to end."""
_LOOK_S = 0.2
_MARK = "REDOUBT_NODE_RAY"
"""The environment variable of a node's Ray; its value is the folder of its log."""
_OF_SERVE = (b"ray::ServeReplica:", b"ray::ProxyActor")
"""How the titles of processes with requests begin."""


def start_arguments(options: NodeOptions, cores: NodeCores, folder: Path) -> list[str]:
    """The arguments of `ray start` for this node. folder: for Ray's files; its path is short because of sockets."""
    arguments = [
        "--block",
        f"--node-ip-address={options.address}",
        f"--temp-dir={folder}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        f"--dashboard-agent-listen-port={AGENT_PORT}",
        f"--metrics-export-port={METRICS_PORT}",
        "--disable-usage-stats",
        "--log-color=false",
    ]
    if options.role is Role.HEAD:
        port = options.head_address.rpartition(":")[2]
        dashboard_host, dashboard_port = options.dashboard
        return [
            "--head",
            f"--port={port}",
            "--num-cpus=0",
            "--include-dashboard=true",
            f"--dashboard-host={'0.0.0.0' if options.confidential is None else dashboard_host}",
            f"--dashboard-port={dashboard_port}",
            "--no-monitor",  # KubeRay runs an autoscaler, if there is one, beside the head
            *arguments,
        ]
    # A whole machine runs a worker per NUMA node; a container with a CPU limit runs one worker.
    slots = len(cores.nodes) if cores.limit_cpus is None else 1
    return [
        f"--address={options.head_address}",
        f"--num-cpus={cores.count}",
        f'--resources={{"numa_node": {slots}}}',
        *arguments,
    ]


def start_environment(options: NodeOptions, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Makes the environment of this node's Ray, and writes HAProxy's files. Raises SettingsError."""
    variables = dict(environment) | node_environment(environment)
    # KubeRay's command for `ray start`: the node makes its own, and the host must not choose what runs here.
    variables.pop("KUBERAY_GEN_RAY_START_CMD", None)
    variables.pop(OWN_PROXY, None)  # set below, where it is true
    variables.setdefault("HOME", str(folder))
    variables["TMPDIR"] = str(folder)  # killed processes leave files there
    if options.confidential is not None:
        variables[ATTESTED_FRONT] = "1"
    # At SIGTERM `ray start` drains the node: Serve moves its workers, its proxy finishes, and the raylet ends when it
    # has nothing left. A head has no workers.
    drain_s = 0 if options.role is Role.HEAD else options.drain_timeout_s
    variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = f"{drain_s:g}"
    if variables.setdefault(USE_HAPROXY, "1") == "1":
        proxy = _proxy_folder()
        shutil.rmtree(proxy, ignore_errors=True)
        encrypted = variables.get("RAY_USE_TLS") == "1"  # HAProxy's connections to other nodes would not be encrypted
        variables |= cluster_haproxy_environment(proxy, options.address, stay_on_node=encrypted)
    return variables


class RayProcess:
    """`ray start --block` as a child process, from construction until `end`."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._mark = str(log.parent)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments],
                env={**environment, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        """The last lines of its output as one, without Ray's time stamps."""
        lines = [_PREFIX.sub("", line).strip() for line in self._log.read_text(errors="replace").splitlines()]
        return " ".join([line for line in lines if line][-_LAST_LINES:]) or "nothing."

    def end(self, timeout_s: float, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Ends it, and all of Ray's processes on this node.

        timeout_s: limit of the drain, before everything is killed. A Ray without Serve processes gets only seconds,
        because it may wait for a head that is gone. is_urgent: whether to kill everything now.
        """
        if self.is_running():
            self._process.terminate()
        until_s = time.monotonic() + timeout_s + _END_TIMEOUT_S
        while self.is_running() and time.monotonic() < until_s and not is_urgent():
            if not self._has_requests():
                until_s = min(until_s, time.monotonic() + _IDLE_END_S)
            time.sleep(_LOOK_S)
        end_marked(_MARK, self._mark)
        self._process.wait()
        proxy = _proxy_folder()
        # Otherwise it belongs to another node of this machine.
        if not processes_with(_PROXY_CONFIG, str(proxy / "haproxy.cfg")):
            shutil.rmtree(proxy, ignore_errors=True)

    def _has_requests(self) -> bool:
        titles = []
        for pid in processes_with(_MARK, self._mark):
            with suppress(OSError):  # it has ended
                titles.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        return any(title.startswith(_OF_SERVE) for title in titles)


def _proxy_folder() -> Path:
    """A path that is the same on every node, because Serve's controller sends its own paths to all."""
    return Path(tempfile.gettempdir()) / _PROXY_FOLDER
