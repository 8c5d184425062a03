"""`redoubt node`: joins a cluster, or begins one, and stays in the foreground.

It looks for mistakes, starts Ray, answers Kubernetes' probes, and drains when it is told to stop. A mistake keeps the
node unready and is checked again every few seconds, so a pod whose volume comes late needs no restart. When Ray ends by
itself, as on every node whose head is gone, the node starts over.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from app.core_files import leave_no_core_files
from app.launch.attested_front import attested_front, check, model_digests
from app.launch.node.certificate import Authority, issue_certificate
from app.launch.node.checks import accepts_connections, mistake, node_cores
from app.launch.node.confidential import Confidential, EnrolmentError, memory_folder, resolved, without_ray
from app.launch.node.health import Health, HealthServer
from app.launch.node.options import NodeOptions
from app.launch.node.ray_process import RayProcess, start_arguments, start_environment
from app.launch.node.readiness import unready_reason
from app.launch.node.roles import Role
from app.launch.ray_environment import has_token
from app.settings.knobs import SettingsError

if TYPE_CHECKING:
    from app.launch.node.membership import Joined

_LOOK_PERIOD_S = 2.0
_LONGEST_PAUSE_S = 30.0
"""The longest pause between two attempts to attest itself to the head."""
_PROBE_TIMEOUT_S = 30.0
_PROBE_LOOK_S = 0.1


def run_node(options: NodeOptions) -> int:
    """Runs the node until SIGTERM, SIGINT or SIGHUP; a second signal ends the drain. Returns the exit status.

    Raises SettingsError. Call it on the main thread.
    """
    leave_no_core_files()
    stop, urgent = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: (urgent if stop.is_set() else stop).set())
    # Ray wants many open files; containers start with a low soft limit.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    health = Health()
    try:
        server = HealthServer(health, options.health_port)
    except OSError as error:
        raise SettingsError(f"--health-port {options.health_port}: {error.strerror or error}") from error
    try:
        _Node(options, health, stop, urgent).run()
    finally:
        server.close()
    print("redoubt node: Stopped.", flush=True)
    return 0


class _Node:
    def __init__(self, options: NodeOptions, health: Health, stop: threading.Event, urgent: threading.Event) -> None:
        self._options = options
        self._health = health
        self._stop = stop
        self._urgent = urgent
        self._pause_s = _LOOK_PERIOD_S

    def run(self) -> None:
        """Runs one Ray after the other, until the node is told to stop."""
        while not self._stop.is_set():
            with ExitStack() as stack:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True)))
                try:
                    self._live_once(folder, stack)
                except (SettingsError, OSError) as error:
                    self._health.set(str(error))
                    self._stop.wait(_LOOK_PERIOD_S)
                except EnrolmentError as error:
                    self._health.set(str(error))
                    self._stop.wait(self._pause_s)
                    self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _live_once(self, folder: Path, stack: ExitStack) -> None:
        """Joins the cluster and runs Ray once. Raises SettingsError, OSError or EnrolmentError if it can't join."""
        if not self._wait_until_startable():
            return
        options, node = self._options, self._options.confidential
        losses: list[Callable[[], str | None]] = []
        if node is None:
            variables = dict(os.environ)
            if options.tls_authority is not None:
                variables |= issue_certificate(Authority.read(options.tls_authority), folder, options.address)
        else:
            options = replace(options, head_address=resolved(options.head_address))
            joined = self._join(options, node, stack)
            variables = without_ray(os.environ) | joined.variables
            losses.append(joined.loss)
        environment = start_environment(options, folder, variables)
        if options.role is not Role.HEAD:
            if not self._wait_for_head(options.head_address, environment):
                return
            if node is not None:
                self._health.set("The front is starting: it reads the models that clients verify.")
                front = attested_front(
                    node.config.service,
                    model_digests(node.config.service),
                    folder,
                    host=options.address,
                    cluster_ca_spki_sha256=joined.authority_spki_sha256,
                    soft_pki=node.soft_pki,
                )
                losses.append(stack.enter_context(front).loss)
        self._pause_s = _LOOK_PERIOD_S
        self._run_ray(options, environment, folder, losses)

    def _join(self, options: NodeOptions, node: Confidential, stack: ExitStack) -> "Joined":
        """Makes this confidential node a part of its cluster."""
        # Only confidential nodes need redoubt-verify.
        from app.launch.node.membership import as_head, as_worker

        check(node.attestation)
        secrets = Path(stack.enter_context(TemporaryDirectory(prefix="redoubt-node-", dir=memory_folder())))
        if options.role is Role.HEAD:
            return stack.enter_context(as_head(node, options.address, secrets))
        return as_worker(node, options.head_address.rpartition(":")[0], options.address, secrets)

    def _run_ray(
        self,
        options: NodeOptions,
        environment: Mapping[str, str],
        folder: Path,
        losses: Sequence[Callable[[], str | None]],
    ) -> None:
        """Runs Ray until it ends, the node is told to stop, or something else essential is lost."""
        self._health.set("Ray is starting.")
        arguments = start_arguments(options, node_cores(), folder / "ray")
        ray = RayProcess(arguments, environment, folder / "start.log")
        while not self._stop.wait(_LOOK_PERIOD_S):
            lost = next((said for loss in losses if (said := loss()) is not None), None)
            if lost is None and not ray.is_running():
                lost = f"Ray has ended on this node, and starts again. It said: {ray.last_words()}"
            if lost is not None:
                self._health.set(lost)
                break
            self._health.set(unready_reason(options))
        else:
            self._health.set("The node is stopping: its requests finish, and new ones go elsewhere.")
        ray.end(options.drain_timeout_s if options.role is not Role.HEAD else 0, self._urgent.is_set)

    def _wait_until_startable(self) -> bool:
        """Waits until the node may start; False: it is told to stop."""
        while not self._stop.is_set():
            reason = mistake(self._options, node_cores())
            if reason is None:
                reason = self._missing()
            if reason is None:
                return True
            self._health.set(reason)
            self._stop.wait(_LOOK_PERIOD_S)
        return False

    def _missing(self) -> str | None:
        """What the node waits for before it can join."""
        if self._options.confidential is None:
            if os.environ.get("RAY_AUTH_MODE", "token") == "token" and not has_token(os.environ):
                return "There is no token for Ray: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, the same on every node."
        elif self._options.role is not Role.HEAD and not accepts_connections(self._options.head_address):
            return _no_answer(self._options.head_address)
        return None

    def _wait_for_head(self, address: str, environment: Mapping[str, str]) -> bool:
        """Waits for the head's answer; False: the node is told to stop.

        A confidential node asks once: a head that refuses it may be a new one, with which it must enrol again.
        """
        while not self._stop.is_set():
            reason = self._head_refusal(address, environment) if accepts_connections(address) else _no_answer(address)
            if reason is None:
                return True
            self._health.set(reason)
            self._stop.wait(_LOOK_PERIOD_S)
            if self._options.confidential is not None:
                break
        return False

    def _head_refusal(self, address: str, environment: Mapping[str, str]) -> str | None:
        """Why the head rejects this node; None: it accepts it."""
        command = [sys.executable, "-m", "app.launch.node.head_probe", address]
        give_up_s = time.monotonic() + _PROBE_TIMEOUT_S
        with subprocess.Popen(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as probe:
            while probe.poll() is None and time.monotonic() < give_up_s and not self._stop.wait(_PROBE_LOOK_S):
                pass
            if probe.poll() is None:
                probe.kill()
                return f"The head at {address} takes connections and does not answer."
            said = probe.communicate()[0]
        if probe.returncode == 0:
            return None
        return (said.strip().splitlines() or [f"The head at {address} could not be asked."])[-1]


def _no_answer(address: str) -> str:
    return f"The head at {address} does not answer yet."
