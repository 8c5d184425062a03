"""Other engines, each with its best settings: one file per peer, run in an environment of its own.

A peer's file has a `PEER`, which tells how to install it and how to start it; and, when run as a module by the peer's
own interpreter, it is the process that `bench.work` talks to. Standard library only at import.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import environ
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """How to get and start one other engine."""

    name: str
    requirements: tuple[str, ...]
    """What pip installs, pinned."""
    pip_options: tuple[str, ...] = ()
    build_environment: Mapping[str, str] = field(default_factory=dict)

    def folder(self, root: Path) -> Path:
        """Its environment, under the repository's root."""
        return root / "build" / "peers" / self.name

    def python(self, root: Path) -> Path:
        """Its interpreter."""
        return self.folder(root) / "bin" / "python"

    def install(self, root: Path) -> None:
        """Installs it unless that was done. Raises CalledProcessError; what was half done is tried again next time."""
        done = self.folder(root) / "installed.txt"
        wanted = "\n".join(self.requirements)
        if done.exists() and done.read_text() == wanted:
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.folder(root))], check=True)
        command = [str(self.python(root)), "-m", "pip", "install", *self.pip_options, *self.requirements]
        subprocess.run(command, check=True, stdout=sys.stderr, env={**environ, **self.build_environment})
        done.write_text(wanted)

    def command(self, root: Path, model: Path, threads: int, clock: str) -> Sequence[str]:
        """Starts its process."""
        module = f"bench.peers.{self.name}"
        return [str(self.python(root)), "-m", module, str(model), "--threads", str(threads), "--clock", clock]
