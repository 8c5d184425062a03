"""A real service, started and stopped as a user does: by a command and by Ctrl-C.

Knows nothing of pytest's fixtures: `tests/conformance` starts one too.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml  # type: ignore[import-untyped]

from bench.processes import descendants as descendants
from bench.processes import free_port as free_port
from bench.processes import processes_named

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 240.0
SMALL_WORKER: Final = {"ray_num_cpus": 0.1, "warm_up_prompt_tokens": 16, "warm_up_new_tokens": 2}
"""Settings of one that starts quickly, and leaves Ray a place for others."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def kill(pids: set[int]) -> None:
    """Some may have ended meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until_all_are_gone(pids: set[int]) -> None:
    """Zombies too."""
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no process left")


def assert_nothing_is_left(running: "RunningService", family: set[int]) -> None:
    """family: the processes that it had."""
    wait_until_all_are_gone(family)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(running.url.rpartition(":")[2]))) == errno.ECONNREFUSED


@dataclass(frozen=True, slots=True)
class RunningService:
    """The service as its users and its operator see it."""

    url: str
    model: str
    process: subprocess.Popen[bytes]
    log: Path
    key: str = ""
    """An API key, where the service has accounts."""

    def processes(self, name: str) -> set[int]:
        """Its processes whose command lines contain the name."""
        return processes_named(name, self.process.pid)

    def only_process(self, name: str) -> int:
        """Waits while there is also an older one, or a child that has not started its own program yet."""
        found: set[int] = set()

        def is_alone() -> bool:
            nonlocal found
            found = self.processes(name)
            return len(found) == 1

        wait_until(is_alone, f"one process {name}")
        return found.pop()

    def rows(self) -> list[dict[str, Any]]:
        """The worker table."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        answer = httpx.get(f"{self.url}/v1/workers", headers=headers, timeout=60)
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows

    def alive(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["state"] == "alive"]

    def is_idle(self) -> bool:
        """Some worker is up, and every place and every page is free, by the router's counts and by the workers'."""
        rows = self.alive()
        return bool(rows) and all(
            row["queue_length"] == row["running"] == row["waiting"] == 0 and row["kv_pages_free"] == row["kv_pages"]
            for row in rows
        )

    def wait_until_idle(self) -> None:
        wait_until(self.is_idle, "all places and pages free")

    def endless(self, prompt: str = "Once upon a time", max_tokens: int | None = None) -> dict[str, Any]:
        """A completion that ends after so many tokens; by itself it does not end: its context shifts."""
        eos = {"0": -100, "2": -100}
        body = {"model": self.model, "prompt": prompt, "stream": True, "logit_bias": eos}
        if max_tokens is not None:
            return body | {"max_tokens": max_tokens}
        return body | {"max_tokens": 1_000_000, "on_overflow": "shift", "context_window": 512}


def write_config(path: Path, changes: Mapping[str, Mapping[str, Any]], **top: Mapping[str, Any]) -> Path:
    """ray_configs/local.yaml with these values of its sections; top: of those beside the applications."""
    values = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text())
    args = values["applications"][0]["args"]
    for section, options in changes.items():
        args[section] = args.get(section, {}) | options
    for section, options in top.items():
        values[section] |= options
    path.write_text(yaml.safe_dump(values))
    return path


@contextmanager
def starting_service(config: Path, log: Path, model: str, *options: str) -> Iterator[RunningService]:
    """Yields it when it says that it is ready, and ends it if it still runs then.

    model: the name to ask for. options: further ones of `redoubt serve`.
    """
    port = free_port()
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(config), "--port", str(port), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, process_group=0)
    try:
        wait_until(lambda: b"is ready" in log.read_bytes() or process.poll() is not None, "ready", START_TIMEOUT_S)
        assert process.poll() is None, log.read_text()
        yield RunningService(f"http://127.0.0.1:{port}", model, process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


@contextmanager
def started_service(config: Path, log: Path, model: str, *options: str) -> Iterator[RunningService]:
    """The same, stopped at the end by Ctrl-C, which a terminal sends to the whole process group, HAProxy included.

    Where all went well no process is left then, and nothing listens.
    """
    with starting_service(config, log, model, *options) as running:
        yield running
        family = descendants(running.process.pid)
        os.killpg(running.process.pid, signal.SIGINT)
        status = running.process.wait(120)
        assert status == 0, f"status {status}\n{log.read_text()}"
        assert_nothing_is_left(running, family)


@contextmanager
def running_service(config: Path, model: Path, log: Path, workers: int) -> Iterator[RunningService]:
    """The service of one model folder, when all its workers are up."""
    with started_service(config, log, model.name, "--model", str(model)) as running:
        wait_until(lambda: len(running.alive()) == workers, f"{workers} workers", START_TIMEOUT_S)
        yield running
