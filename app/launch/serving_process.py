"""The main process' side of one Ray with the service in it: starts the program, hears from it, and cleans up.

Knows the protocol of `app.launch.serving`, and not what it does.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.launch.cleanup import end_marked
from app.launch.held_ports import HeldPorts, PortPool
from app.launch.ray_environment import USE_HAPROXY, haproxy_environment, ray_environment
from app.launch.serving import TRY_AGAIN_STATUS, Change, Job
from app.running_mark import is_marked
from app.settings.environment import RAY_FOLDER
from app.settings.knobs import SettingsError

_END_TIMEOUT_S = 20.0
_LOOK_S = 0.1
_SPARE_PORTS = 8
"""One port for Serve's own proxy; the others for ingresses that start before Serve knows that others are lost."""


class ServingProcess:
    """One Ray, from start to end. Used by one thread."""

    def __init__(self, name: str, job: Job, front: Path | None, ports: PortPool) -> None:
        """Starts the program.

        name: marks its processes, and names it at the front. front: where the front takes configurations; None: Serve's
        own proxy has the address. ports: for HAProxy's connections to the ingresses; they are returned at its end.
        Raises SettingsError if HAProxy can't be started.
        """
        self.name = name
        self.job = job
        self.is_ready = False
        self.dashboard: str | None = None
        self.start_s: int = 0
        self.loss: str | None = None
        """Why it must be replaced although it still answers; None: it need not be."""
        job.folder.mkdir(mode=0o700)
        environment = {**os.environ, RAY_FOLDER: f"{job.folder}"}
        environment |= ray_environment(job.folder, environment)
        self._ports = ports
        self._held: HeldPorts | None = None
        if front is not None:
            self._held = ports.take(2 * job.config.application.args.ingress.count + _SPARE_PORTS)
            try:
                environment |= haproxy_environment(job.folder, front, name, self._held.ports)
            except SettingsError:
                ports.give_back(self._held)
                raise
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        self._received = b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.launch.serving", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
                process_group=0,  # Ctrl-C is for the main process; the session stays the same, so that priorities count
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin:
            self._process.stdin.write(job.to_json().encode() + b"\n")

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while the program runs."""
        return self._process.poll()

    @property
    def may_be_tried_again(self) -> bool:
        """Whether the failure is only that Ray itself did not start."""
        return self.status == TRY_AGAIN_STATUS

    def hear(self) -> list[dict[str, Any]]:
        """Returns its messages about changes since the last call; messages about itself are kept as attributes."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while part := self._control.recv(1 << 16):
                self._received += part
        *lines, self._received = self._received.split(b"\n")
        changes = []
        for line in lines:
            news = json.loads(line)
            if "ready" in news:
                self.is_ready, self.start_s, self.dashboard = True, news["ready"], news["dashboard"]
            elif "lost" in news:
                self.loss = news["lost"]
            else:
                changes.append(news)
        return changes

    def change(self, change: Change) -> None:
        """Sends it a change."""
        with contextlib.suppress(OSError):
            self._control.sendall(change.to_json().encode() + b"\n")

    @property
    def answers_run(self) -> bool:
        """Whether answers run that no client listens to."""
        return self.status is None and is_marked(self.job.folder)

    def begin_end(self) -> None:
        if self.status is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, meanwhile: Callable[[], None], *, keep_logs: bool) -> None:
        """Ends the program and every process of its Ray, and removes their files. Calls `meanwhile` now and then."""
        self.begin_end()
        until_s = time.monotonic() + _END_TIMEOUT_S
        while self.status is None and time.monotonic() < until_s:
            meanwhile()
            time.sleep(_LOOK_S)
        end_marked(RAY_FOLDER, str(self.job.folder))
        self._process.wait()
        self._control.close()
        if self._held is not None:
            self._ports.give_back(self._held)
            self._held = None
        if not keep_logs:
            shutil.rmtree(self.job.folder, ignore_errors=True)


def uses_haproxy() -> bool:
    """Whether HAProxy is to be used, which the environment may turn off."""
    return os.environ.setdefault(USE_HAPROXY, "1") == "1"
