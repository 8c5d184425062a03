"""`redoubt node`: joins a cluster, or begins one, and stays in the foreground.

It checks what can be wrong before Ray starts, starts Ray, answers Kubernetes' probes, and drains when it is told to
stop. A mistake keeps the node unready and is looked at again every few seconds, so a pod whose volume comes late needs
no restart. When Ray ends by itself, as it does on every node whose head is gone, the node begins again.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from app.launch.node.certificate import issue_certificate
from app.launch.node.checks import accepts_connections, mistake, node_cores
from app.launch.node.health import Health, HealthServer
from app.launch.node.options import NodeOptions
from app.launch.node.ray_process import RayProcess, start_arguments, start_environment
from app.launch.node.readiness import unready_reason
from app.launch.node.roles import Role
from app.launch.ray_environment import has_token
from app.settings import SettingsError

_LOOK_PERIOD_S = 2.0
_PROBE_TIMEOUT_S = 30.0


def run_node(options: NodeOptions) -> int:
    """Runs the node until SIGTERM or SIGINT; returns the exit status. Raises SettingsError. On the main thread."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Ray wants many files open; containers begin with few of those that they may have.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    health = Health()
    try:
        server = HealthServer(health, options.health_port)
    except OSError as error:
        raise SettingsError(f"--health-port {options.health_port}: {error.strerror or error}") from error
    try:
        _Node(options, health, stop).run()
    finally:
        server.close()
    print("redoubt node: Stopped.", flush=True)
    return 0


class _Node:
    """A node in its states, one after the other."""

    def __init__(self, options: NodeOptions, health: Health, stop: threading.Event) -> None:
        self._options = options
        self._health = health
        self._stop = stop

    def run(self) -> None:
        """One life of Ray after the other, until the node is told to stop."""
        while not self._stop.is_set():
            folder = Path(tempfile.mkdtemp(prefix="r-"))
            try:
                self._live_once(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _live_once(self, folder: Path) -> None:
        if not self._wait_until_startable():
            return
        try:
            environment = self._environment(folder)
        except SettingsError as error:
            self._health.set(str(error))
            self._stop.wait(_LOOK_PERIOD_S)
            return
        if self._options.role is not Role.HEAD and not self._wait_for_head(environment):
            return
        self._health.set("Ray is starting.")
        arguments = start_arguments(self._options, node_cores(), folder / "ray")
        ray = RayProcess(arguments, environment, folder / "start.log")
        while not self._stop.wait(_LOOK_PERIOD_S):
            if not ray.is_running():
                self._health.set(f"Ray has ended on this node, and starts again. It said: {ray.last_words()}")
                break
            self._health.set(unready_reason(self._options))
        else:
            self._health.set("The node is stopping: its requests finish, and new ones go elsewhere.")
        ray.end(self._options.drain_timeout_s if self._options.role is not Role.HEAD else 0)

    def _environment(self, folder: Path) -> dict[str, str]:
        environment = dict(os.environ)
        if self._options.tls_authority is not None:
            environment |= issue_certificate(self._options.tls_authority, folder, self._options.address)
        return start_environment(self._options, folder, environment)

    def _wait_until_startable(self) -> bool:
        """Whether it may start now; False: the node is told to stop."""
        while not self._stop.is_set():
            reason = mistake(self._options, node_cores())
            if reason is None and os.environ.get("RAY_AUTH_MODE", "token") == "token" and not has_token(os.environ):
                reason = "There is no token for Ray: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, the same on every node."
            if reason is None:
                return True
            self._health.set(reason)
            self._stop.wait(_LOOK_PERIOD_S)
        return False

    def _wait_for_head(self, environment: Mapping[str, str]) -> bool:
        """The same, for the head's answer."""
        address = self._options.head_address
        while not self._stop.is_set():
            if accepts_connections(address):
                reason = _head_refusal(address, environment)
                if reason is None:
                    return True
            else:
                reason = f"The head at {address} does not answer yet."
            self._health.set(reason)
            self._stop.wait(_LOOK_PERIOD_S)
        return False


def _head_refusal(address: str, environment: Mapping[str, str]) -> str | None:
    """Why the head does not take this node; None: it does."""
    command = [sys.executable, "-m", "app.launch.node.head_probe", address]
    try:
        probe = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"The head at {address} takes connections and does not answer."
    if probe.returncode == 0:
        return None
    return (probe.stdout.strip().splitlines() or [f"The head at {address} could not be asked."])[-1]
