"""Starts the peers of a comparison: installs each, makes its form of the model, and checks that it fits into memory.

All engines of a comparison are loaded at once, so what is free must suffice for one more and for what those before it
may yet take, as when they repack their weights. Measures nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.common import ROOT, available_memory_bytes
from bench.models import BenchModel
from bench.peers import Peer
from bench.process import Contender, CrashError

NO_ROOM: Final = "GB of memory"
"""Is in the reason why a peer is missing that does not fit."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all engines of a comparison share."""

    environments: Path
    model: BenchModel
    weights: int
    threads: int
    clock: str
    context_tokens: int
    """The most that any stream will have."""
    timeout_s: float


def start_peer(peer: Peer, setting: Setting, others: Sequence[Contender]) -> Contender:
    """Installs a peer and starts it beside `others`. Raises MemoryError, and what installing and starting raise."""
    peer.install(setting.environments)
    needed = int(peer.memory_per_weight_bytes * setting.weights)
    free, growth = available_memory_bytes(), sum(growth_bytes(one) for one in others)
    if needed > free - growth:
        others_take = f", of which engines before it may yet take {growth / 1e9:.1f} GB" if growth else ""
        raise MemoryError(
            f"needs about {needed / 1e9:.1f} {NO_ROOM}, {free / 1e9:.1f} GB are free{others_take}: not run"
        )
    path = setting.model.make_gguf() if peer.reads == "gguf" else setting.model.make_hf()
    command = peer.command(
        setting.environments,
        path,
        setting.threads,
        setting.clock,
        setting.context_tokens,
        memory_bytes=free - growth,
    )
    log = setting.environments / f"{peer.name}.log"
    one = Contender(peer.name, command, ROOT, log, setting.timeout_s, most_memory_bytes=needed)
    try:
        one.start()
    except CrashError:
        one.stop()
        raise
    return one


def growth_bytes(one: Contender) -> int:
    """Memory that an engine may still allocate; 0 if unknown."""
    return max(0, one.most_memory_bytes - one.private_bytes()) if one.most_memory_bytes else 0
