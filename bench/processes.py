"""Processes that benches start, and what is below them: which they are, what they took, and that none is left.

Reads /proc. Kills nothing that it was not given.
"""

import contextlib
import os
import secrets
import signal
import socket
import time
from pathlib import Path


def left_of(family: set[int], within_s: float = 10.0) -> list[str]:
    """The names of those of a service's processes that run on after this time, which it then kills."""
    deadline_s = time.monotonic() + within_s
    while (names := [name for pid in family if (name := _name_of(pid))]) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    for pid in family:
        if _name_of(pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return names


def _name_of(pid: int) -> str:
    """Name of a running process; empty if it has ended."""
    return command_line(pid).partition("\0")[0] if is_running(pid) else ""


def is_running(pid: int) -> bool:
    """Whether it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_line(pid: int) -> str:
    """A process's arguments, or the title it has given itself, each ended by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def processes_named(name: str, pid: int) -> set[int]:
    """`pid` and its descendants whose command lines contain the name."""
    return {each for each in descendants(pid) if name in command_line(each)}


def descendants(pid: int) -> set[int]:
    """The processes below `pid`, and itself."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def cpu_s(pid: int) -> float:
    """User and system time of a process. Raises OSError if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port of loopback that nobody listens on.

    It is none that the system gives to whoever asks for any, nor one of Ray's workers' (10002 to 19999), so that nobody
    else gets it by chance before it is used.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
