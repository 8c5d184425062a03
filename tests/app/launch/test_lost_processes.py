"""The local service with a real Ray, but nothing deployed: what happens when one of its processes is lost.

`tests/service/test_service_lost.py` does some of this with a whole service.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.tiny_model import write_model
from tests.service.running import descendants, free_port, wait_until

SERVICE = """
import sys
from pathlib import Path
from app.launch import local
local.deploy = lambda config, share, progress: None
local._wait_for_answer = lambda http_options: None
sys.exit(local.serve_local(Path(sys.argv[1]), port=int(sys.argv[2]), model_folders=[Path(sys.argv[3])]))
"""
CONFIG = Path(__file__).parents[3] / "ray_configs/local.yaml"

pytestmark = pytest.mark.service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The main process, which leads a process group, and what it prints; it says that it is ready."""
    model = write_model(tmp_path / "model")
    log = tmp_path / "log"
    command = [sys.executable, "-c", SERVICE, str(CONFIG), str(free_port()), str(model)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, process_group=0)
    try:
        wait_until(lambda: b"is ready" in log.read_bytes() or process.poll() is not None, "ready", 100)
        assert process.poll() is None, log.read_text()
        yield process, log
    finally:
        process.kill()
        process.wait()


def named(family: set[int], name: str) -> int:
    (pid,) = (pid for pid in family if name in Path(f"/proc/{pid}/cmdline").read_text())
    return pid


def wait_until_gone(family: set[int]) -> None:
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), "no process left")


@pytest.mark.parametrize(("command", "name"), [("gcs/gcs_server", "GCS"), ("raylet/raylet", "raylet")])
def test_without_gcs_or_raylet_the_service_ends(
    command: str, name: str, service: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, log = service
    family = descendants(process.pid)
    os.kill(named(family, command), signal.SIGKILL)
    assert process.wait(30) == 1
    assert f"Ray's {name} was ended by SIGKILL. The service cannot go on without it, and stops." in log.read_text()
    (logs,) = (line for line in log.read_text().splitlines() if line.startswith("Ray's logs: "))
    wait_until_gone(family)
    folder = Path(logs.removeprefix("Ray's logs: ")).parents[2]
    assert not (folder / "ray_token").exists()
    assert (folder / "ray/session_latest/logs").is_dir()


def test_a_signal_to_the_whole_group_is_an_orderly_end(service: tuple[subprocess.Popen[bytes], Path]) -> None:
    """Some supervisors send one: GCS and raylet end by themselves then, which is no loss."""
    process, log = service
    family = descendants(process.pid)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    assert "Stopping ..." in log.read_text()
    wait_until_gone(family)
