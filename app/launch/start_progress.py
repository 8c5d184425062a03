"""Shows what a start is waiting for: on a terminal a line that counts seconds, elsewhere a line for each step.

Knows nothing of the service but the sentences that it is given.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

_TICK_S = 0.5


class StartProgress:
    """Shows the current step within its `with` block. Its thread ends with the block, whatever the reason."""

    def __init__(self, out: TextIO, *, usual_s: float, logs: str) -> None:
        """usual_s: after this time the start gets a hint. logs: where to look then."""
        self._out = out
        self._usual_s = usual_s
        self._logs = logs
        self._is_terminal = out.isatty()
        self._describe: Callable[[], str] = str
        self._shown = ""
        self._since_s = self._started_s = time.monotonic()
        self._has_hinted = False
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_terminal:
            self._write("\x1b[K")

    def now(self, step: str | Callable[[], str]) -> None:
        """Sets the current step: a sentence without a full stop, or a function that is asked twice a second."""
        self._describe = step if callable(step) else lambda: step
        self._show()

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            self._show()

    def _show(self) -> None:
        with self._changing:
            text = self._describe()
            if not text:
                return
            now_s = time.monotonic()
            is_new = text != self._shown
            if is_new:
                self._shown, self._since_s = text, now_s
            if not self._has_hinted and now_s - self._started_s > self._usual_s:
                self._has_hinted = True
                self._write(f"{_clear(self._is_terminal)}{_hint(self._logs)}\n")
            if self._is_terminal:
                # Return the cursor, so that other output begins on this line and not after it.
                columns = shutil.get_terminal_size().columns
                self._write(f"\x1b[K{f'{text} ... {now_s - self._since_s:.0f} s'[: columns - 1]}\r")
            elif is_new:
                self._write(f"{text} ...\n")

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # the output is closed, which is no reason to stop
            self._ended.set()


def _clear(is_terminal: bool) -> str:
    return "\x1b[K" if is_terminal else ""


def _hint(logs: str) -> str:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"This takes longer than usual: the load is {load:.1f} on {cores} cores. Ray's logs: {logs}"
