"""What the engines under comparison are asked to do, and how: JSON lines between the bench and one process for each.

The process announces itself with an `About` line when its model is loaded, then answers each `Work` line with the
seconds it took, under one of its own variants (settings that it can be run with). Standard library only: it runs in
the peers' own environments too.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any, Literal


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement."""

    kind: Literal["prefill", "decode"]
    streams: int
    """Sequences side by side; prefill has one."""
    context_tokens: int
    """Prefill: the prompt's tokens. Decode: the tokens that each stream has before the clock starts."""
    new_tokens: int
    """Decode: steps on the clock, each making a token for each stream."""

    @property
    def tokens(self) -> int:
        """Tokens that the seconds are about."""
        return self.context_tokens if self.kind == "prefill" else self.streams * self.new_tokens

    @property
    def name(self) -> str:
        """As it is called in a report."""
        return f"prefill {self.context_tokens}" if self.kind == "prefill" else f"decode {self.streams}"


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""Seconds by name. On a machine that others use, CPU seconds of one thread still compare well; those of several do
not, as threads that wait for each other spin."""


@dataclass(frozen=True, slots=True)
class About:
    """What a process says of itself."""

    version: str
    settings: str
    variants: tuple[str, ...]
    load_s: float


def works(prompt: int, decode_context: int, generate: int, batches: Sequence[int]) -> list[Work]:
    """The usual list: one prefill, then decoding at each batch."""
    decodes = [Work("decode", streams, decode_context, generate) for streams in batches]
    return [Work("prefill", 1, prompt, 0), *decodes]


def serve(about: About, measure: Callable[[Work, str], float]) -> None:
    """The process' side: answers works from standard input until it is closed.

    `measure(work, variant)` returns seconds. Whatever libraries print must not go to standard output.
    """
    print(json.dumps(asdict(about)), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        seconds = measure(Work(**order["work"]), order["variant"])
        print(json.dumps({"seconds": seconds}), flush=True)


class Contender:
    """The bench's side: one running process."""

    def __init__(self, name: str, orders: IO[str], answers: IO[str]) -> None:
        """Waits until the model is loaded. Raises RuntimeError if the process ends instead."""
        self.name = name
        self._orders = orders
        self._answers = answers
        about = self._read()
        self.about = About(
            version=str(about["version"]),
            settings=str(about["settings"]),
            variants=tuple(about["variants"]),
            load_s=float(about["load_s"]),
        )

    def measure(self, work: Work, variant: str) -> float:
        """Seconds for the work. Raises RuntimeError if the process has ended."""
        self._orders.write(json.dumps({"work": asdict(work), "variant": variant}) + "\n")
        self._orders.flush()
        return float(self._read()["seconds"])

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def contender(name: str, command: Sequence[str], folder: Path) -> Iterator[Contender]:
    """Starts a process in `folder` (the repository, so that it finds this package) and ends it after the block."""
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Contender(name, process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait()
