"""The real application with the embedded model and two workers of one core each, started once."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.service)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s} s: {what}")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class RunningService:
    """The service as its users and its operator see it."""

    url: str
    model: str
    process: subprocess.Popen[bytes]
    log: Path

    def rows(self) -> list[dict[str, Any]]:
        """The worker table."""
        rows: list[dict[str, Any]] = httpx.get(f"{self.url}/v1/workers", timeout=10).json()["data"]
        return rows

    def alive(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["state"] == "alive"]

    def is_idle(self) -> bool:
        """Every place and every page is free, in the router's books and in the workers'."""
        return all(
            row["queue_length"] == row["running"] == row["waiting"] == 0 and row["kv_pages_free"] == row["kv_pages"]
            for row in self.alive()
        )

    def wait_until_idle(self) -> None:
        wait_until(self.is_idle, "all places and pages free")

    def endless(self, prompt: str = "Once upon a time", max_tokens: int = 3000) -> dict[str, Any]:
        """A completion that does not end by itself for minutes."""
        eos = {"0": -100, "2": -100}
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "logit_bias": eos,
        }


def descendants(pid: int) -> set[int]:
    """The processes below `pid`, and itself."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = {pid}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def service_model(request: pytest.FixtureRequest) -> Path:
    """The converted model: REDOUBT_TEST_MODEL, or the embedded one."""
    other = os.environ.get("REDOUBT_TEST_MODEL")
    folder = Path(other) if other else request.getfixturevalue("embedded_model")
    assert isinstance(folder, Path)
    return folder


@pytest.fixture(scope="session")
def service_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ray_configs/local.yaml with two small workers that are quick to be full, and to be missed."""
    values = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text())
    args = values["applications"][0]["args"]
    args["engine"] |= {"kv_memory_bytes": 400 << 20}
    args["worker"] |= {
        "count": 2,
        "cpus_per_worker": 1,
        "ray_num_cpus": 0.1,
        "max_concurrent_requests": 2,
        "max_queued_requests": 2,
        "heartbeat_period_s": 0.5,
        "health_check_period_s": 1.0,
        "health_check_timeout_s": 60.0,
        "warm_up_prompt_tokens": 64,
        "warm_up_new_tokens": 8,
    }
    args["router"] |= {"expiration_s": 3.0}
    path = tmp_path_factory.mktemp("config") / "service.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="session")
def service(
    service_config: Path, service_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """Started as its users do, and stopped by Ctrl-C; no process may be left."""
    port = free_port()
    log = tmp_path_factory.mktemp("service") / "log"
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(service_config), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--model", str(service_model)], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    running = RunningService(f"http://127.0.0.1:{port}", service_model.name, process, log)
    try:
        wait_until(lambda: b"is ready" in log.read_bytes() or process.poll() is not None, "ready", START_TIMEOUT_S)
        assert process.poll() is None, log.read_text()
        wait_until(lambda: len(running.alive()) == 2, "two workers", START_TIMEOUT_S)
        yield running
        family = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, log.read_text()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), "no process left")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
