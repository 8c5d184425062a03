"""`redoubt chat` on a terminal without a window: what is typed, and what stands on the screen and above it."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyte

# So that Ctrl-C reaches the program.
_AT_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_WAIT_S = 120.0


class Screen(pyte.HistoryScreen):
    """Answers what the program asks of a terminal."""

    terminal: int

    def write_process_input(self, data: str) -> None:
        os.write(self.terminal, data.encode())


class Terminal:
    """One program on it."""

    def __init__(self, command: list[str], environ: dict[str, str], columns: int, lines: int) -> None:
        self._terminal, inside = pty.openpty()
        self._screen = Screen(columns, lines, history=10_000)
        self._screen.terminal = self._terminal
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.written = b""
        """All that the program has written."""
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environ, start_new_session=True
        )
        os.close(inside)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        with self._lock:
            self._screen.resize(lines, columns)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def lines(self) -> list[str]:
        """The scrollback and the screen."""
        with self._lock:
            above = ["".join(row[x].data for x in range(self._screen.columns)) for row in self._screen.history.top]
            return [line.rstrip() for line in [*above, *self._screen.display]]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, words: str, times: int = 1) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while self.text().count(words) < times:
            assert time.monotonic() < deadline_s, f"no {words!r} in\n{self.text()}"
            time.sleep(0.02)

    def ask(self, text: str) -> list[str]:
        """Types it and waits for the end of its answer; the lines since then."""
        before = self.text()
        self.type(f"{text}\r")
        self.wait_for(" remembered", before.count(" remembered") + 1)
        return self.lines()[len(before.rstrip().split("\n")) :]

    def leave(self) -> int:
        """The program's exit status, after Ctrl-D."""
        self.type("\x04")
        return self.process.wait(_WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(_WAIT_S)
        os.close(self._terminal)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # the program has gone
                return
            if not data:
                return
            with self._lock:
                self.written += data
                self._stream.feed(data)


@contextlib.contextmanager
def chat_on_terminal(
    url: str, folder: Path, *options: str, columns: int = 100, lines: int = 20, **environ: str
) -> Iterator[Terminal]:
    """A chat that has begun. folder: for the file of sessions."""
    surroundings = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "REDOUBT_API_KEY")
    }
    surroundings |= {"TERM": "xterm-256color", "XTERM_VERSION": "1", "XDG_CONFIG_HOME": str(folder), **environ}
    command = [sys.executable, "-c", _AT_TERMINAL, "-m", "app.cli", "chat", "--url", url, *options]
    terminal = Terminal(command, surroundings, columns, lines)
    try:
        terminal.wait_for("\n>")
        yield terminal
    finally:
        terminal.close()
