"""Improves a service's models behind it, one after the other, while the machine is idle.

The work is a program of its own (`app.commands.improving`). Knows what it prints, and not how a model is changed over.
"""

import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.launch.idle_process import IdleProcess


@dataclass(frozen=True, slots=True)
class Improved:
    """The end of one model's improvement."""

    told: str
    """A sentence for the user."""
    before: Path | None = None
    """The folder of the converted model as it was; None: there is no better one."""
    after: Path | None = None


def improving_command(name: str) -> list[str]:
    """The program that improves a model of the store."""
    return [sys.executable, "-m", "app.commands.improving", name]


def result_of(printed: str) -> dict[str, str | None]:
    """The result in what the program has printed: its last line."""
    values: dict[str, str | None] = json.loads(printed.splitlines()[-1])
    return values


class Improvements:
    """Call `look` about five times a second, and `close` at the end."""

    def __init__(self, names: Sequence[str], log: Path) -> None:
        """names: of models in the store. log: a file for what the program says."""
        self._names = deque(names)
        self._log = log
        self._running: IdleProcess | None = None

    def look(self) -> Improved | None:
        """Starts the next one, if none runs; returns what came of one that has ended."""
        if self._running is None:
            if self._names:
                with self._log.open("a") as log:
                    self._running = IdleProcess(improving_command(self._names[0]), stderr=log.fileno())
            return None
        if (status := self._running.look()) is None:
            return None
        printed = self._running.result()
        self.close()
        return _improved(self._names.popleft(), status, printed, self._log)

    def close(self) -> None:
        """Ends the one that runs; it goes on with the next service that improves the model. Idempotent."""
        if self._running is not None:
            self._running.end()
            self._running = None


def _improved(name: str, status: int, printed: str, log: Path) -> Improved:
    if status == 0:
        values = result_of(printed)
        before, after = values["before"], values["after"]
        changed = before is not None and after is not None
        return Improved(str(values["told"]), *((Path(str(before)), Path(str(after))) if changed else (None, None)))
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("redoubt: ")]
    reason = lines[-1].removeprefix("redoubt: ") if lines else f"it ended with status {status}"
    return Improved(f"{name} was not improved: {reason}")
