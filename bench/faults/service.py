"""The service under test, started as its users start it, and its processes by name. It kills nothing of anybody else's.

Knows nothing of requests and of what is measured.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import yaml  # type: ignore[import-untyped]

from bench.common import ROOT
from bench.processes import descendants, free_port, left_of

START_TIMEOUT_S: Final = 300.0
_END_TIMEOUT_S = 60.0

PROCESSES: Final = {
    "worker": "ray::ServeReplica:redoubt:Worker",
    "ingress": "ray::ServeReplica:redoubt:Ingress",
    "haproxy": "haproxy\0-db",
    "manager": "ray::HAProxyManager",
    "controller": "ray::ServeController",
    "raylet": "raylet/raylet",
    "gcs": "gcs/gcs_server",
    "serving": "app.launch.serving",
}
"""Substrings of the service processes' command lines."""


class Service:
    """A service of this configuration; a supervisor that starts it again whenever its main process has ended."""

    def __init__(self, config: Path, log: Path, *, model: str | None = None) -> None:
        """Starts nothing. model: a folder to serve instead of the file's."""
        self.config = config
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = 0
        self._model = model
        self.headers: dict[str, str] = {}
        """Credential of a user who may see the worker table."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and does not wait."""
        command = [sys.executable, "-m", "app.cli", "serve", "--config", str(self.config), "--port", str(self.port)]
        command += ["--model", self._model] if self._model else []
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
        self.starts += 1

    @property
    def pid(self) -> int:
        """Process id of the main process."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the main process has."""
        return self._process is None or self._process.poll() is not None

    def keep_up(self) -> None:
        """Starts it again if its main process has ended, as systemd does."""
        if self.has_ended:
            self.start()

    def wait_until_whole(self, workers: int) -> None:
        """Waits until `workers` workers are up.

        Raises RuntimeError with the log's end after minutes, or if the service ended.
        """
        self._wait(lambda: self.alive() == workers)

    def wait_until_answering(self) -> None:
        """Waits until the service answers at all. Raises RuntimeError as `wait_until_whole` does."""
        self._wait(lambda: httpx.get(f"{self.url}/health", timeout=5).is_success)

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if condition():
                    return
            if self.has_ended or time.monotonic() > deadline_s:
                raise RuntimeError(f"the service did not become whole:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def rows(self) -> list[dict[str, Any]]:
        """The worker table; empty if nothing answers."""
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            rows: list[dict[str, Any]] = httpx.get(f"{self.url}/v1/workers", headers=self.headers, timeout=5).json()[
                "data"
            ]
            return rows
        return []

    def alive(self) -> int:
        """How many workers are up."""
        return sum(row["state"] == "alive" for row in self.rows())

    def processes(self, kind: str) -> list[int]:
        """The service's own of one of PROCESSES."""
        found = []
        for pid in descendants(self.pid):
            with contextlib.suppress(OSError):
                if PROCESSES[kind] in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return sorted(found)

    def end(self) -> list[str]:
        """Ends it as an operator does; returns the names of processes that are left, which it then kills."""
        if self.has_ended:
            return []
        family = descendants(self.pid)
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return left_of(family)


@contextlib.contextmanager
def service_of(
    config: Path | None,
    folder: Path,
    change: Callable[[dict[str, Any]], None] = lambda values: None,
    prepare: Callable[[Path], None] | None = None,
) -> Iterator[Service]:
    """A service that is ended with the block. config: None: two workers of the embedded model.

    change: made to the values of the file, of which the service gets a copy. prepare: gets that copy's path before the
    start.
    """
    values = yaml.safe_load((config or ROOT / "ray_configs/local.yaml").read_text(encoding="utf-8"))
    arguments = values["applications"][0]["args"]
    if config is None:
        arguments["model"]["folder"] = str(ROOT / arguments["model"]["folder"])
        arguments["worker"] |= {"count": 2, "cpus_per_worker": max(1, (os.cpu_count() or 2) // 2), "ray_num_cpus": 0.1}
        arguments["engine"]["kv_memory_bytes"] = 400 << 20
    change(values)
    own = folder / "service.yaml"
    own.write_text(yaml.safe_dump(values), encoding="utf-8")
    if prepare is not None:
        prepare(own)
    service = Service(own, folder / "service.log")
    try:
        service.start()
        yield service
    finally:
        service.end()
