import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.launch.cleanup import processes_with
from app.launch.node.checks import NodeCores
from app.launch.node.ray_process import RayProcess, start_arguments, start_environment
from app.launch.node.roles import Role
from app.workers.numa import Slot
from tests.app.launch.node.test_checks import WHOLE_NODE, options
from tests.service.running import wait_until

TWO_NODES = NodeCores((Slot(0, (0, 1)), Slot(1, (2, 3))), 4, None)


def worker_resources(arguments: list[str]) -> tuple[int, float]:
    """CPUs and NUMA nodes that a worker offers."""
    given = dict(one.removeprefix("--").split("=", 1) for one in arguments if "=" in one)
    return int(given["num-cpus"]), json.loads(given["resources"])["numa_node"]


def test_a_whole_machine_offers_its_cores_and_numa_nodes(tmp_path: Path) -> None:
    assert worker_resources(start_arguments(options(), WHOLE_NODE, tmp_path)) == (4, 1)
    assert worker_resources(start_arguments(options(), TWO_NODES, tmp_path)) == (4, 2)


def test_a_part_of_a_machine_offers_one(tmp_path: Path) -> None:
    limited = replace(TWO_NODES, limit_cpus=3.0)
    assert worker_resources(start_arguments(options(), limited, tmp_path)) == (3, 1)


def test_a_head_computes_nothing_and_takes_configurations(tmp_path: Path) -> None:
    arguments = start_arguments(options(Role.HEAD), WHOLE_NODE, tmp_path)
    assert {"--head", "--num-cpus=0", "--dashboard-host=0.0.0.0", "--port=6379"} <= set(arguments)


def test_what_the_host_wants_to_start_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hosts = "ray start --head; curl elsewhere"
    environment = start_environment(options(), tmp_path, {"KUBERAY_GEN_RAY_START_CMD": hosts, "KEPT": "1"})
    assert hosts not in environment.values()
    assert environment["KEPT"] == "1"


@pytest.mark.parametrize(("role", "expected"), [(Role.HEAD, "0"), (Role.WORKER, "60")])
def test_a_worker_drains_and_a_head_does_not(
    role: Role, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = start_environment(options(role), tmp_path, {})
    assert environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == expected


def test_with_tls_between_nodes_requests_stay_on_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plain = start_environment(options(), tmp_path, {})
    encrypted = start_environment(options(), tmp_path, {"RAY_USE_TLS": "1"})
    assert (plain["REDOUBT_PROXY_STAY_ON_NODE"], encrypted["REDOUBT_PROXY_STAY_ON_NODE"]) == ("0", "1")


def test_addresses_are_believed_of_our_haproxy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert start_environment(options(), tmp_path, {})["REDOUBT_OWN_PROXY"] == "1"
    without = {"RAY_SERVE_ENABLE_HA_PROXY": "0", "REDOUBT_OWN_PROXY": "1"}
    assert "REDOUBT_OWN_PROXY" not in start_environment(options(), tmp_path, without)


def test_why_ray_ended_is_in_its_last_lines(tmp_path: Path) -> None:
    process = RayProcess(["--no-such-option"], {"PATH": "", "PYTHONPATH": ":".join(sys.path)}, tmp_path / "log")
    wait_until(lambda: not process.is_running(), "it ends")
    assert "--no-such-option" in process.last_words()


IGNORES_SIGTERM = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
if sys.argv[-1] != "none":
    subprocess.Popen(["bash", "-c", f"exec -a {sys.argv[-1]} sleep 600"])
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("title", "is_urgent"), [("none", False), ("ray::ServeReplica:a:Worker", True)])
def test_a_ray_that_waits_for_nothing_ends_in_seconds_and_leaves_nothing(
    title: str, is_urgent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose head is gone; with requests it has its time, and a second signal ends that."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = tmp_path / "ray/scripts/scripts.py"
    program.parent.mkdir(parents=True)
    for package in (program.parent, program.parents[1]):
        (package / "__init__.py").touch()
    program.write_text(IGNORES_SIGTERM)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)} | start_environment(options(), tmp_path, {})
    environment["PYTHONPATH"] = str(tmp_path)
    assert Path(environment["TMPDIR"]) == tmp_path
    process = RayProcess([title], environment, tmp_path / "log")
    wait_until(lambda: "up" in process.last_words(), "it runs")
    began_s = time.monotonic()
    process.end(600, lambda: is_urgent)
    assert time.monotonic() - began_s < 60
    assert not processes_with("TMPDIR", str(tmp_path))
    assert not list(tmp_path.glob("redoubt-proxy*"))


def test_rays_time_stamps_are_left_out(tmp_path: Path) -> None:
    process = RayProcess(["--help"], {"PATH": "", "PYTHONPATH": ":".join(sys.path)}, tmp_path / "log")
    process.end(30)
    stamp = "2026-11-25 03:17:42,460\tERR scripts.py:1315 -- "
    (tmp_path / "log").write_text(f"{stamp}Some processes exited:\n  raylet [exit code=1]\n\n{stamp}The rest ends.\n")
    assert process.last_words() == "Some processes exited: raylet [exit code=1] The rest ends."
