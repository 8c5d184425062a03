"""The whole service is lost: no process of it stays, and a supervisor sees its exit status.

`tests/app/launch/test_lost_processes.py` has more of this, with a Ray but without a model.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.processes import command_line
from tests.service.running import (
    RunningService,
    descendants,
    starting_service,
    wait_until_all_are_gone,
    write_config,
)

_RAY_START_S = 240
"""A new Ray starts beside the one that still computes, and beside the other tests."""


@contextmanager
def small_service(model: Path, folder: Path, **more: Any) -> Iterator[tuple[RunningService, set[int]]]:
    """A service of one worker, with these settings too, and all its processes. The test ends it."""
    worker = {"cpus_per_worker": 1, "ray_num_cpus": 0.1, "warm_up_prompt_tokens": 16, "warm_up_new_tokens": 2}
    changes: dict[str, dict[str, Any]] = {"engine": {"kv_memory_bytes": 100 << 20}, "worker": worker | more}
    config = write_config(folder / "service.yaml", changes)
    with starting_service(config, folder / "log", model.name, "--model", str(model)) as running:
        family = descendants(running.process.pid)
        yield running, family


def assert_nothing_is_left(running: RunningService, family: set[int]) -> None:
    wait_until_all_are_gone(family)
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=60)


def private_folder(running: RunningService) -> Path:
    (gcs_server,) = running.processes("gcs_server")
    command = command_line(gcs_server)
    (log_option,) = (part for part in command.split("\0") if part.startswith("--log_dir="))
    return next(folder for folder in Path(log_option.partition("=")[2]).parents if folder.name.startswith("redoubt-"))


def test_the_main_process_is_killed(service_model: Path, tmp_path: Path) -> None:
    with small_service(service_model, tmp_path) as (running, family):
        folder = private_folder(running)
        assert folder.is_dir()
        running.process.kill()
        running.process.wait()
        assert_nothing_is_left(running, family)
        assert not folder.exists()


def test_what_everything_depends_on_is_killed(service_model: Path, tmp_path: Path) -> None:
    """The GCS, the raylet, the serving program, HAProxy: each is replaced, and requests are answered or wait.

    The raylet takes workers and ingress with it, so that for a moment there is nothing behind the front.
    """
    with small_service(service_model, tmp_path) as (running, _):
        body = {"model": running.model, "prompt": "One, two,", "max_tokens": 200, "temperature": 0, "ignore_eos": True}

        def ask(refusals: int = 0) -> str:
            answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=_RAY_START_S + 60)
            if answer.status_code == 503 and refusals:
                time.sleep(int(answer.headers["retry-after"]))
                return ask(refusals - 1)
            assert answer.status_code == 200, (answer.text, running.log.read_text())
            return str(answer.json()["choices"][0]["text"])

        clean = ask()
        for name, is_new_ray in (
            ("haproxy\0-db", False),
            ("gcs/gcs_server", True),
            ("raylet/raylet", True),
            ("app.launch.serving", True),
        ):
            before = running.alive()[0]["worker_id"]
            for pid in running.processes(name):
                os.kill(pid, signal.SIGKILL)
            for _ in range(3):
                assert ask(0 if name in ("haproxy\0-db", "gcs/gcs_server") else 10) == clean, name
            if is_new_ray:
                deadline_s = time.monotonic() + _RAY_START_S
                while not any(row["worker_id"] != before for row in rows(running)):
                    assert time.monotonic() < deadline_s, (name, running.log.read_text())
                    time.sleep(0.2)
            assert ask() == clean, name
        family = descendants(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(120) == 0, running.log.read_text()
        assert_nothing_is_left(running, family)


def rows(running: RunningService) -> list[dict[str, Any]]:
    """Empty while nothing answers."""
    try:
        return running.alive()
    except httpx.HTTPError:
        return []


def test_a_stop_and_a_change_wait_for_answers(service_model: Path, tmp_path: Path) -> None:
    """SIGUSR1 starts the service anew beside itself, and SIGTERM lets a stream come to its end."""
    with small_service(service_model, tmp_path, drain_timeout_s=300.0) as (running, _):
        body = {**running.endless(max_tokens=1500), "temperature": 0}
        begun = threading.Event()
        with ThreadPoolExecutor(1) as pool:

            def stream() -> str:
                with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=600) as answer:
                    lines = []
                    for line in answer.iter_lines():
                        if line.startswith("data: "):
                            lines.append(line.removeprefix("data: "))
                            begun.set()
                *events, last = lines
                assert last == "[DONE]"
                return "".join(json.loads(event)["choices"][0]["text"] for event in events)

            clean = pool.submit(stream).result()
            before = running.alive()[0]["worker_id"]
            running.process.send_signal(signal.SIGUSR1)
            while not any(row["worker_id"] != before for row in rows(running)):
                assert pool.submit(stream).result() == clean
            begun.clear()
            streaming = pool.submit(stream)
            assert begun.wait(120)
            running.process.send_signal(signal.SIGTERM)
            assert streaming.result() == clean
        assert running.process.wait(400) == 0, running.log.read_text()
