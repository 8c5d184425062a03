"""The whole service is lost: no process of it stays, and a supervisor sees its exit status.

`tests/app/launch/test_lost_processes.py` has more of this, with a Ray but without a model.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.service.running import RunningService, descendants, starting_service, wait_until, write_config


@contextmanager
def small_service(model: Path, folder: Path) -> Iterator[tuple[RunningService, set[int]]]:
    """A service of one worker, and all its processes. The test ends it."""
    changes: dict[str, dict[str, Any]] = {
        "engine": {"kv_memory_bytes": 100 << 20},
        "worker": {"cpus_per_worker": 1, "ray_num_cpus": 0.1, "warm_up_prompt_tokens": 16, "warm_up_new_tokens": 2},
    }
    config = write_config(folder / "service.yaml", changes)
    with starting_service(config, folder / "log", model.name, "--model", str(model)) as running:
        family = descendants(running.process.pid)
        yield running, family


def named(family: set[int], name: str) -> int:
    """The one process of the family whose command contains the name."""
    (pid,) = (pid for pid in family if name in Path(f"/proc/{pid}/cmdline").read_text())
    return pid


def assert_nothing_is_left(running: RunningService, family: set[int]) -> None:
    wait_until(lambda: not [pid for pid in family if Path(f"/proc/{pid}").exists()], "no process left", 10)
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


def private_folder(family: set[int]) -> Path:
    command = Path(f"/proc/{named(family, 'gcs_server')}/cmdline").read_text()
    (log_option,) = (part for part in command.split("\0") if part.startswith("--log_dir="))
    return next(folder for folder in Path(log_option.partition("=")[2]).parents if folder.name.startswith("redoubt-"))


@pytest.mark.timeout(180)
def test_the_main_process_is_killed(service_model: Path, tmp_path: Path) -> None:
    with small_service(service_model, tmp_path) as (running, family):
        folder = private_folder(family)
        assert folder.is_dir()
        running.process.kill()
        running.process.wait()
        assert_nothing_is_left(running, family)
        assert not folder.exists()


@pytest.mark.timeout(180)
def test_rays_gcs_is_lost(service_model: Path, tmp_path: Path) -> None:
    """Nothing in Ray could replace a worker any more, and the main process may be waiting for it."""
    with small_service(service_model, tmp_path) as (running, family):
        os.kill(named(family, "gcs_server"), signal.SIGKILL)
        start_s = time.monotonic()
        try:
            status = running.process.wait(30)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it still runs after {time.monotonic() - start_s:.0f} s:\n{running.log.read_text()}")
        assert status == 1
        assert time.monotonic() - start_s < 20
        assert "Ray's GCS was ended by SIGKILL. The service cannot go on" in running.log.read_text()
        assert_nothing_is_left(running, family)
