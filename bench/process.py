"""The bench's side of one engine: starts its process, requests measurements, and distinguishes refusals from crashes.

A process that ends or does not answer in time is a `CrashError` with its last output; it can be started again. Between
measurements the process is stopped (SIGSTOP), because threads that spin while they wait for work slow down the engine
that is measured next. Does not know what is measured.
"""

import json
import os
import selectors
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

from bench.common import memory_bytes
from bench.work import About, NotSupportedError, Work

LAST_WORDS_CHARACTERS = 1500


class CrashError(Exception):
    """The process ended, or did not answer in time. The message ends with its last output."""


class Contender:
    """One engine under comparison: a process that loads the model once and measures each requested work."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        log: Path,
        timeout_s: float,
        *,
        most_memory_bytes: int = 0,
    ) -> None:
        """Starts nothing yet.

        folder: where the process runs (the repository, so that it finds this package). log: gets its standard error.
        timeout_s: for loading, and for each work. most_memory_bytes: what it may take; 0 where that is not known.
        """
        self.name = name
        self.about: About | None = None
        self._command = list(command)
        self._folder = folder
        self._log = log
        self.most_memory_bytes = most_memory_bytes
        self._timeout_s = timeout_s
        self._process: Popen[bytes] | None = None
        self._received = b""

    def start(self) -> About:
        """Starts the process and waits until its model is loaded. Raises CrashError."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._received = b""
        with self._log.open("wb") as log:
            try:
                self._process = Popen(
                    # a stopped process does not notice that its pipes were closed
                    ["setpriv", "--pdeathsig", "KILL", *self._command],
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    cwd=self._folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise CrashError(f"does not start: {error}") from error
        about = self._read()
        self._rest()
        self.about = About(
            version=str(about["version"]),
            settings=str(about["settings"]),
            variants=tuple(about["variants"]),
            load_s=float(about["load_s"]),
        )
        return self.about

    def measure(self, work: Work, variant: str) -> float:
        """Seconds for the work. Raises NotSupportedError, CrashError."""
        answer = self.ask({"work": asdict(work), "variant": variant})
        if "not_supported" in answer:
            raise NotSupportedError(answer["not_supported"])
        return float(answer["seconds"])

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """The process' answer to an order; starts the process again if it has crashed. Raises CrashError."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._crash("has ended") from error
        answer = self._read()
        self._rest()
        return answer

    def private_bytes(self) -> int:
        """The process' memory that is no file's; 0 if it does not run."""
        if self._process is None:
            return 0
        try:
            return memory_bytes(f"/proc/{self._process.pid}/status", "RssAnon")
        except OSError:
            return 0

    def stop(self) -> None:
        """Ends the process if it runs: closes its input, and kills it if it has not ended after 10 s."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGCONT)
        with suppress(OSError):  # it may have ended already
            process.stdin.close()
        try:
            process.wait(10)
        except TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        process.stdout.close()

    def _rest(self) -> None:
        """Stops the process and waits until it is stopped."""
        assert self._process is not None
        self._signal(signal.SIGSTOP)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children."""
        assert self._process is not None
        with suppress(ProcessLookupError):  # it has ended; reading its answer will show that
            os.killpg(self._process.pid, number)

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(self._timeout_s):
                    os.killpg(self._process.pid, 9)
                    raise self._crash(f"gave no answer within {self._timeout_s:.0f} s")
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._crash("has ended")
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._crash(f"answered {line[:200]!r}")
        return answer

    def _crash(self, what: str) -> CrashError:
        process = self._process
        self.stop()
        status = "" if process is None else f" with status {process.returncode}"
        words = self._log.read_text(errors="replace").strip()[-LAST_WORDS_CHARACTERS:]
        return CrashError(f"{what}{status}; its last output: {words}" if words else f"{what}{status}")
