"""Cleans up after a service whose main process has ended in whatever way: ends its processes, then removes its folder.

Runs as a program of its own beside the main process (`python -I cleanup.py FOLDER`), because after SIGKILL the main
process can do nothing any more. It waits on a pipe that only the main process holds open, until the pipe ends. Every
process of a service has the variable `MARK` in its environment. So each is found, whatever its parent is by now, and
unrelated processes, such as an editor that shows a log of the service, are left alone.

Imports only the standard library, so that it starts in milliseconds and costs little memory.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "REDOUBT_SERVICE_FOLDER"
"""The environment variable of a service's processes; its value is the service's private folder."""
KEEP_LOGS = b"keep logs\n"
"""What the main process writes into the pipe to keep Ray's logs in the folder."""

_TOKEN = "ray_token"
_LOCK = "lock"
_GIVE_UP_S = 10.0
_LOOK_PERIOD_S = 0.05


def processes_with(variable: str, value: str) -> list[int]:
    """Lists the processes that were started with this variable in their environment."""
    mark = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def end_marked(variable: str, value: str) -> None:
    """Kills the processes with that variable, and those that they start meanwhile; gives up after ten seconds."""
    give_up_s = time.monotonic() + _GIVE_UP_S
    while (left := processes_with(variable, value)) and time.monotonic() < give_up_s:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_PERIOD_S)


def end_processes(folder: Path) -> None:
    """Kills all processes of the service with this private folder, except its main process."""
    end_marked(MARK, str(folder))


def remove(folder: Path, *, keep_logs: bool) -> None:
    """Removes the folder; with `keep_logs` only its token and its lock."""
    if not keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
        return
    (folder / _LOCK).unlink(missing_ok=True)
    for token in folder.glob(f"*/{_TOKEN}"):
        token.unlink(missing_ok=True)


def holds_logs(folder: Path) -> bool:
    """Whether the folder is what `remove` leaves with `keep_logs`."""
    return any(folder.glob("*/ray/session_latest")) or any(folder.glob("ray/session_latest"))


def main() -> None:
    """Waits until the main process, which holds standard input open, ends, and cleans up."""
    folder = Path(sys.argv[1])
    last_words = sys.stdin.buffer.read()
    end_processes(folder)
    remove(folder, keep_logs=last_words == KEEP_LOGS)


if __name__ == "__main__":
    main()
