"""Other engines and grammar libraries, each with its best settings and its own environment: one file for each.

An engine's file has a `PEER`, which says how to install and start it. Run as a module by the peer's interpreter, the
file is the process that `bench.process` controls. Standard library only at import.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Literal

from bench.work import CLOCKS

_INSTALLED = "installed.txt"


class InstallError(Exception):
    """A peer could not be installed; the message ends with the installer's last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """How to install something into an environment of its own."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    """Arguments of successive calls of `pip install`, with pinned versions; empty: it is laid there by hand."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the installation."""

    def python(self, environments: Path) -> Path:
        return environments / self.name / "bin" / "python"

    def is_installed(self, environments: Path) -> bool:
        """Whether it is in `environments`/name, in this version."""
        done = environments / self.name / _INSTALLED
        return done.exists() and done.read_text() == self._wanted()

    def install(self, environments: Path) -> None:
        """Installs it into `environments`/name unless that was done or there are no steps. Raises InstallError."""
        if not self.steps or self.is_installed(environments):
            return  # without steps somebody lays it there by hand, and nothing of that may be removed
        folder = (environments / self.name).resolve()
        log = environments / f"{self.name}-install.log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

        def run(command: Sequence[str]) -> None:
            with log.open("ab") as output:
                variables = {**environ, **self.environment, "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
                ended = subprocess.run(command, cwd=folder, stdout=output, stderr=output, env=variables)
            if ended.returncode != 0:
                last = log.read_text(errors="replace").strip()[-1500:]
                raise InstallError(f"{' '.join(map(str, command))} ended with {ended.returncode}: {last}")

        log.write_bytes(b"")
        try:
            run([sys.executable, "-m", "venv", str(folder)])
            for step in self.steps:
                run([str(folder / "bin" / "python"), "-m", "pip", "install", *step])
        except OSError as error:
            raise InstallError(str(error)) from error
        (folder / _INSTALLED).write_text(self._wanted())

    def _wanted(self) -> str:
        return "\n".join(" ".join(step) for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Environment):
    """How to install and start one other engine."""

    reads: Literal["gguf", "hf"]
    """The model's form: a 4-bit GGUF, or a Hugging Face folder in bf16."""
    memory_per_weight_bytes: float
    """The approximate memory for a weight; the peer is not started if so much is not available."""

    def command(
        self,
        environments: Path,
        model: Path,
        threads: int,
        clock: str,
        context_tokens: int,
        *,
        memory_bytes: int | None = None,
    ) -> Sequence[str]:
        """The command line of its process.

        context_tokens: the most that any stream will have. memory_bytes: what it may take; None: all that is free.
        """
        options = ["--threads", str(threads), "--clock", clock, "--context", str(context_tokens)]
        options += [] if memory_bytes is None else ["--memory-bytes", str(memory_bytes)]
        python = self.python(environments).absolute()  # not resolved: the path selects the environment
        return [str(python), "-m", f"bench.peers.{self.name}", str(model.absolute()), *options]


def parse_process_options() -> argparse.Namespace:
    """The command line that `Peer.command` writes: model, threads, clock, context, memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int)
    return parser.parse_args()
