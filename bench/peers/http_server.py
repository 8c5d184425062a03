"""How a peer's HTTP server is installed and started. Standard library only; knows no request and no measurement."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench.peers import Environment

ABOUT: Final = "about: "
"""What the line of a server's output begins with that says, as JSON, how it runs; optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the server must have room for."""

    threads: int
    slots: int
    """Requests that are computed at the same time."""
    context_tokens: int
    """Of one request: prompt and answer."""
    kv_bytes: int
    """For the keys and values of all slots at once."""

    @property
    def kv_gib(self) -> int:
        """The same in whole GiB, rounded up, for servers that take no other size."""
        return -(-self.kv_bytes // (1 << 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command that serves OpenAI's API on a port of loopback."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides this process' own."""
    settings: str
    """In words, for the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPeer(Environment):
    """A peer's server. `environment` is of the installation."""

    version: str
    start: Callable[[Path, Path, int, Sizes], Start]
    """Of its interpreter, the model, the port, and the sizes."""
    reads: Literal["gguf", "hf"]
    memory_per_weight_bytes: float
    """The approximate memory for a weight; the server is not started if so much is not available."""


def announce(**about: object) -> None:
    """Says how the server runs, in its output."""
    print(ABOUT + json.dumps(about), flush=True)


def announced(log: Path) -> dict[str, object]:
    """What a server has said of itself."""
    lines = log.read_text(errors="replace").splitlines()
    found: dict[str, object] = {}
    for line in lines:
        if line.startswith(ABOUT):
            found |= json.loads(line[len(ABOUT) :])
    return found
