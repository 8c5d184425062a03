"""The way of Ray's own commands, as docs/ray.md has it: `serve run`, `status`, `deploy`, dashboard, autoscaling.

One Ray for all of it, in the order of the page.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from app.launch.cleanup import end_marked, processes_with
from tests.listening import listening_addresses
from tests.service.running import ROOT, SMALL_WORKER, free_port, wait_until, write_config

pytestmark = pytest.mark.service

ARGS: dict[str, dict[str, Any]] = {
    "engine": {"kv_memory_bytes": 64 << 20},
    "worker": SMALL_WORKER
    | {
        "heartbeat_period_s": 0.5,
        "autoscaling": {
            "max_workers": 2,
            "target_ongoing_requests": 2.0,
            "upscale_delay_s": 1.0,
            "downscale_delay_s": 3.0,
        },
    },
}


_STARTS = 3
"""Ray gives up where a busy machine takes longer than its own limits; `serve run` does not try again."""


@dataclass(frozen=True, slots=True)
class Commands:
    url: str
    model: str
    config: Path
    log: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]

    @property
    def dashboard(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())
        assert found is not None, self.log.read_text()
        return found[0]

    def serve(self, *arguments: str, cwd: Path) -> str:
        environment = {**self.environment, "RAY_DASHBOARD_ADDRESS": self.dashboard}
        command = [sys.executable, "-m", "ray.serve.scripts", *arguments]
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def processes(self) -> list[int]:
        return processes_with("HOME", self.environment["HOME"])

    def statuses(self, cwd: Path) -> set[str]:
        (application,) = yaml.safe_load(self.serve("status", cwd=cwd))["applications"].values()
        return {application["status"], *(part["status"] for part in application["deployments"].values())}

    def workers(self) -> list[dict[str, Any]]:
        rows = httpx.get(f"{self.url}/v1/workers", timeout=60).json()["data"]
        return [row for row in rows if row["state"] == "alive"]


@pytest.fixture(scope="module")
def commands(service_model: Path) -> Iterator[Commands]:
    """`serve run` with a model at a relative path."""
    with tempfile.TemporaryDirectory(prefix="redoubt-", dir="/tmp", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        config = write_config(folder / "service.yaml", {**ARGS, "model": {"folder": service_model.name}})
        port = free_port()
        config.write_text(config.read_text().replace("port: 8000", f"port: {port}"))
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        plain |= {"HOME": place, "TMPDIR": place, "PYTHONPATH": str(ROOT)}
        printed = subprocess.check_output([sys.executable, "-m", "app.cli", "ray-env"], env=plain, cwd=ROOT, text=True)
        said = subprocess.check_output(["bash", "-c", f"{printed}\nenv -0"], env=plain, text=True)
        environment = dict(line.split("=", 1) for line in said.split("\0") if line)
        log = folder / "log"
        for _ in range(_STARTS):
            process = serve_run(config, log, environment, service_model.parent)
            running = Commands(f"http://127.0.0.1:{port}", service_model.name, config, log, environment, process)
            try:
                wait_until(lambda: process.poll() is not None or answers(running), "the service answers", 240)  # noqa: B023
                if process.poll() is None:
                    yield running
                    return
            finally:
                process.kill()
                process.wait()
                end_marked("HOME", place)
        pytest.fail(log.read_text())


def serve_run(config: Path, log: Path, environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ray.serve.scripts", "run", str(config)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def answers(running: Commands) -> bool:
    try:
        return httpx.get(f"{running.url}/health", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def chat(running: Commands, max_tokens: int) -> httpx.Response:
    body = {
        "model": running.model,
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": max_tokens,
        "min_tokens": max_tokens,
    }
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=240)


def test_serve_run_listens_on_loopback_only(commands: Commands) -> None:
    assert chat(commands, 4).status_code == 200
    addresses = listening_addresses(commands.processes())
    assert len(addresses) > 5
    assert all(address.is_loopback for address in addresses)


def test_rays_memory_monitor_is_off_and_large_messages_pass(commands: Commands) -> None:
    log = Path(commands.environment["TMPDIR"]) / "ray/session_latest/logs/raylet.out"
    assert "MemoryMonitor disabled" in log.read_text()
    text = "a " * 2_000_000  # a body within the limit, and an answer of more than 4 MiB
    answer = httpx.post(f"{commands.url}/tokenize", json={"model": commands.model, "prompt": text}, timeout=240)
    assert answer.status_code == 200, answer.text[:500]
    assert len(answer.content) > 4 << 20


def test_status_and_dashboard_show_the_application(commands: Commands, tmp_path: Path) -> None:
    wait_until(lambda: commands.statuses(tmp_path) == {"RUNNING", "HEALTHY"}, "it runs")
    where = f"{commands.dashboard}/api/serve/applications/"
    assert httpx.get(where, timeout=60).status_code == 401
    token = Path(commands.environment["HOME"], ".ray/auth_token").read_text()
    shown = httpx.get(where, headers={"Authorization": f"Bearer {token}"}, timeout=60).json()
    assert shown["applications"]["redoubt"]["status"] == "RUNNING"


def test_load_adds_a_worker_takes_it_away_and_loses_no_request(commands: Commands) -> None:
    (first,) = commands.workers()
    stop, statuses = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            statuses.append(chat(commands, 64).status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(commands.workers()) == 2, "a second worker", 240)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}
    wait_until(lambda: len(commands.workers()) == 1, "one worker again", 240)
    assert len(first["cpus"]) <= len(os.sched_getaffinity(0)) // 2
    assert chat(commands, 4).status_code == 200


def test_deploy_from_another_folder_finds_the_model(commands: Commands, tmp_path: Path) -> None:
    values = yaml.safe_load(commands.config.read_text())
    values["applications"][0]["args"]["model"]["served_name"] = "renamed"
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(values))
    commands.serve("deploy", "other.yaml", cwd=tmp_path)
    wait_until(
        lambda: "renamed" in httpx.get(f"{commands.url}/v1/models", timeout=60).text, "the changed application", 240
    )
    wait_until(lambda: commands.statuses(tmp_path) == {"RUNNING", "HEALTHY"}, "it runs", 240)


def test_deploy_of_a_cut_model_is_one_line_in_the_status(
    commands: Commands, service_model: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(service_model, cut)
    os.truncate(cut / "model.safetensors", 1_000_000)
    values = yaml.safe_load(commands.config.read_text())
    values["applications"][0]["args"]["model"] = {"folder": str(cut)}
    (tmp_path / "cut.yaml").write_text(yaml.safe_dump(values))
    commands.serve("deploy", "cut.yaml", cwd=tmp_path)

    def message() -> str:
        application = yaml.safe_load(commands.serve("status", cwd=tmp_path))["applications"]["redoubt"]
        return str(application["message"]) if application["status"] == "DEPLOY_FAILED" else ""

    wait_until(lambda: message() != "", "the deployment is refused", 240)
    first, second = message().splitlines()
    assert first == "Deploying app 'redoubt' failed with exception:"
    assert second.startswith(f"model.folder: {cut}/model.safetensors is damaged: it has 1000000 bytes")


def test_ctrl_c_leaves_no_process(commands: Commands) -> None:
    os.killpg(commands.process.pid, signal.SIGINT)
    commands.process.wait(120)
    wait_until(lambda: not commands.processes(), "no process left")
