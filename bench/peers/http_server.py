"""How a peer's HTTP server is installed and started. Standard library only; knows no request and no measurement."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench.peers import Environment

ABOUT: Final = "about: "
"""Prefix of an optional output line in which a server says, as JSON, how it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The load that the server must have room for."""

    threads: int
    slots: int
    """Requests that are computed at the same time."""
    context_tokens: int
    """Context of one request: prompt and answer."""
    kv_bytes: int
    """Memory for the keys and values of all slots together."""

    @property
    def kv_gib(self) -> int:
        """`kv_bytes` in whole GiB, rounded up, for servers that take no other size."""
        return -(-self.kv_bytes // (1 << 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command that serves OpenAI's API on a port of loopback."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides this process' own."""
    settings: str
    """Description of the settings for the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPeer(Environment):
    """A peer's server. `environment` is of the installation."""

    version: str
    start: Callable[[Path, Path, int, Sizes], Start]
    """Makes the start command from interpreter, model, port and sizes."""
    reads: Literal["gguf", "hf"]
    memory_per_weight_bytes: float
    """The approximate memory for a weight; the server is not started if so much is not available."""


def announce(**about: object) -> None:
    """Says how the server runs, in its output."""
    print(ABOUT + json.dumps(about), flush=True)


def announced(log: Path) -> dict[str, object]:
    """Reads what a server has announced in its log."""
    lines = log.read_text(errors="replace").splitlines()
    found: dict[str, object] = {}
    for line in lines:
        if line.startswith(ABOUT):
            found |= json.loads(line[len(ABOUT) :])
    return found
