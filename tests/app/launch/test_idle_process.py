"""A process on idle cores: it stops for others, goes on after them, and ends with what has started it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.launch import idle_process
from app.launch.idle_process import IdleProcess

WORK = "import sys, time\nfor n in range(10**9):\n    print(n, file=sys.stderr, flush=True); time.sleep(0.01)"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def worker(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IdleProcess]:
    monkeypatch.setattr(idle_process, "_QUIET_S", 0.3)
    monkeypatch.setattr(idle_process, "_END_S", 120.0)  # on busy cores it gets to its end late
    with log.open("w") as stderr:
        process = IdleProcess([sys.executable, "-c", WORK], stderr=stderr.fileno())
    yield process
    process.end()


def look_until(process: IdleProcess, *, stopped: bool) -> None:
    until_s = time.monotonic() + 60
    while process.is_stopped != stopped:
        assert process.look() is None
        assert time.monotonic() < until_s
        time.sleep(0.02)


def grows(log: Path) -> bool:
    before = log.stat().st_size
    time.sleep(0.3)
    return log.stat().st_size > before


def test_it_stops_for_others_and_goes_on_after_them(
    worker: IdleProcess, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_process, "_BUSY_CORES", -1.0)  # others always compute
    look_until(worker, stopped=True)
    time.sleep(0.05)
    assert not grows(log)
    monkeypatch.setattr(idle_process, "_BUSY_CORES", 1e9)  # and now never
    look_until(worker, stopped=False)
    until_s = time.monotonic() + 240
    while not grows(log):
        assert time.monotonic() < until_s


def test_what_it_uses_itself_does_not_count(worker: IdleProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = idle_process._TICKS_PER_S
    lines = {"/proc/stat": f"cpu  {5 * ticks} {4 * ticks} {3 * ticks} 1000 50 {ticks} {2 * ticks} 0 0 0\n"}
    own = f"7 (a ) name) S 1 1 1 0 -1 0 0 0 0 0 {3 * ticks} {ticks} 0 0 39 19 1 0"
    monkeypatch.setattr(idle_process, "_first_line", lambda path: lines.get(path, own))
    assert worker._times()[1] == 5 + 4 + 3 + 1 + 2 - 4


def test_a_stopped_process_can_be_ended(worker: IdleProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_process, "_BUSY_CORES", -1.0)
    look_until(worker, stopped=True)
    worker.end()
    worker.end()
    assert worker.look() in (-signal.SIGINT, 1, 130)


def test_what_it_prints_and_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_process, "_BUSY_CORES", 1e9)
    process = IdleProcess([sys.executable, "-c", "print('found'); raise SystemExit(3)"])
    while (status := process.look()) is None:
        time.sleep(0.02)
    assert (status, process.result()) == (3, "found\n")
    process.end()


def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    child = (
        "import time; from app.launch.reverse_proxy import end_with_parent\n"
        "end_with_parent(); print('up', flush=True); time.sleep(600)"
    )
    parent = (
        "import sys, time; from app.launch.idle_process import IdleProcess\n"
        f"one = IdleProcess([sys.executable, '-c', {child!r}])\n"
        "one._process.stdout.readline(); print(one._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.kill()
    until_s = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < until_s
        time.sleep(0.02)
