"""The folder of a service, and what clears it up."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.launch import cleanup
from app.launch.private_folder import PrivateFolder, remove_stale
from bench.processes import command_line, is_running
from tests.service.running import wait_until

MAIN_PROCESS = """
import os, subprocess, sys
from app.launch.private_folder import PrivateFolder
folder = PrivateFolder()
(folder.path / "1").mkdir()
(folder.path / "1/ray_token").write_text("secret")
child = subprocess.Popen(["sleep", "1000"], env=os.environ | folder.environment, start_new_session=True)
print(folder.path, child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where services make their folders; its path is short enough for them."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def main_process(base: Path) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """A main process, the private folder of its service, and another process of that."""
    command = [sys.executable, "-c", MAIN_PROCESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path, child = process.stdout.readline().split()
        yield process, Path(path), int(child)
        process.kill()


def cleanup_process(folder: Path) -> int:
    """The process id of the program that waits for the end of the folder's service."""
    found: list[int] = []

    def is_there() -> bool:
        pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
        found.extend(pid for pid in pids if command_line(pid).split("\0")[-3:-1] == [cleanup.__file__, str(folder)])
        return bool(found)

    wait_until(is_there, "the clean-up process is there")
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_main_process_ends_nothing_stays(
    number: signal.Signals, main_process: tuple[subprocess.Popen[str], Path, int]
) -> None:
    process, folder, child = main_process
    # A new program's environment can be read only a moment after its start.
    wait_until(lambda: cleanup.processes_with(cleanup.MARK, str(folder)) == [child], "its mark is seen")
    cleaner = cleanup_process(folder)
    os.kill(cleaner, signal.SIGTERM)  # as one for a whole group of processes
    process.send_signal(number)
    process.wait()
    wait_until(lambda: not is_running(child), "the service's other process is gone")
    wait_until(lambda: not folder.exists(), "the folder is gone")
    wait_until(lambda: not is_running(cleaner), "its own work done, it ends")


def test_a_dead_service_is_cleared_up_by_the_next(
    base: Path, main_process: tuple[subprocess.Popen[str], Path, int]
) -> None:
    process, folder, child = main_process
    remove_stale(base)
    assert is_running(child)
    assert folder.is_dir()
    cleaner = cleanup_process(folder)
    os.kill(cleaner, signal.SIGKILL)
    wait_until(lambda: not is_running(cleaner), "the clean-up process is gone")
    remove_stale(base)
    assert folder.is_dir()  # the main process lives
    process.kill()
    process.wait()
    assert is_running(child)
    remove_stale(base)
    wait_until(lambda: not is_running(child), "the service's other process is gone")
    assert not folder.exists()


def test_what_is_not_a_dead_service_is_left_alone(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [base / name for name in ("redoubt-logs", "redoubt-open", "redoubt-theirs", "other-a")]
    for folder in kept:
        folder.mkdir(mode=0o700)
        if folder.name != "redoubt-logs":  # those of a service that did not start have no lock
            (folder / "lock").touch()
    (base / "redoubt-open").chmod(0o755)
    stale = base / "redoubt-stale"
    stale.mkdir(mode=0o700)
    (stale / "lock").touch()
    link = base / "redoubt-link"
    link.symlink_to(kept[3])
    theirs = os.geteuid() + 1
    real_lstat = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        values = list(real_lstat(path))
        if path.name == "redoubt-theirs":
            values[stat.ST_UID] = theirs
        return os.stat_result(values)

    monkeypatch.setattr(Path, "lstat", lstat)
    remove_stale(base)
    assert sorted(path.name for path in base.iterdir()) == sorted([link.name, *(folder.name for folder in kept)])


def test_the_folder_is_ours_alone_and_its_logs_may_stay(base: Path) -> None:
    for keep_logs in (True, False):
        folder = PrivateFolder()
        assert folder.path.parent == base
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        (folder.path / "1").mkdir()
        (folder.path / "1/ray_token").write_text("secret")
        (folder.path / "log").write_text("a line")
        folder.close(keep_logs=keep_logs)
        names = {path.name for path in base.rglob("*")}
        assert names == ({folder.path.name, "log", "1"} if keep_logs else set())
        cleanup.remove(folder.path, keep_logs=False)
