"""A process that computes only while the machine has nothing else to do: it is stopped while others compute.

What others use is the time of all processors less the process' own. Its priority is the lowest besides, for the moment
until it is stopped. Its threads are counted, its children are not.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

LOOK_S: Final = 0.2
_BUSY_CORES: Final = 0.25
"""An idle service uses less, with its heartbeats and Ray's own processes; one answer more."""
_QUIET_S: Final = 3.0
"""How long others must be idle before it goes on: a chat has pauses."""
_END_S: Final = 2.0
"""A process on a busy machine may not get to end by itself."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class IdleProcess:
    """Call `look` about every LOOK_S, and `end` at the end."""

    def __init__(self, command: Sequence[str], *, stderr: "IO[str] | int | None" = None) -> None:
        """Starts it. Its standard output is kept for `result`."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
        pid = self._process.pid
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, 19)
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
            # Where the kernel groups processes by session, this is what counts beside other sessions.
            Path(f"/proc/{pid}/autogroup").write_text("19")
        self._is_stopped = False
        self._quiet_since_s = time.monotonic()
        self._seen = self._times()

    @property
    def is_stopped(self) -> bool:
        """Whether it waits for others to be idle."""
        return self._is_stopped

    def look(self) -> int | None:
        """Stops it or lets it go on; returns its exit status once it has ended."""
        if (status := self._process.poll()) is not None:
            return status
        now_s, others_s = self._times()
        before_s, others_before_s = self._seen
        if now_s - before_s < LOOK_S / 2:
            return None
        self._seen = now_s, others_s
        if (others_s - others_before_s) / (now_s - before_s) > _BUSY_CORES:
            self._quiet_since_s = now_s
            self._signal(signal.SIGSTOP, is_stopped=True)
        elif now_s - self._quiet_since_s >= _QUIET_S:
            self._signal(signal.SIGCONT, is_stopped=False)
        return None

    def result(self) -> str:
        """What it has printed, once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.read()

    def end(self) -> None:
        """Ends it, as Ctrl-C does, so that it can keep what it has. Idempotent."""
        if self._process.poll() is None:
            self._signal(signal.SIGCONT, is_stopped=False)
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _signal(self, number: signal.Signals, *, is_stopped: bool) -> None:
        if self._is_stopped != is_stopped:
            self._process.send_signal(number)
            self._is_stopped = is_stopped

    def _times(self) -> tuple[float, float]:
        """Now, and the processor time that all others have used, in seconds."""
        user, nice, system, _, _, irq, softirq, *_ = map(int, _first_line("/proc/stat").split()[1:])
        own = 0
        with contextlib.suppress(OSError):  # it has ended
            fields = _first_line(f"/proc/{self._process.pid}/stat").rpartition(")")[2].split()
            own = int(fields[11]) + int(fields[12])
        return time.monotonic(), (user + nice + system + irq + softirq - own) / _TICKS_PER_S


def _first_line(path: str) -> str:
    with Path(path).open() as file:
        return file.readline()
