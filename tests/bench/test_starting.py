import sys
from pathlib import Path
from typing import Any

import pytest

from bench import starting
from bench.common import ROOT
from bench.models import BenchModel
from bench.peers import Peer
from bench.process import Contender
from bench.starting import Setting, growth_bytes, start_peer

PEER = Peer(name="a", steps=(), reads="gguf", memory_per_weight_bytes=2.0)
PROCESS = """
from bench.work import About, serve, take_stdout
kept = bytearray(b"1" * 50_000_000)
serve(About(version="1", settings="none", variants=("",), load_s=0.0), lambda *_: 1.0, take_stdout())
"""


def setting(folder: Path) -> Setting:
    (folder / "a.gguf").touch()
    model = BenchModel("8b", folder, folder / "a.gguf", folder)
    return Setting(folder, model, 1000, threads=1, clock="wall", context_tokens=8, timeout_s=60)


class Holding(Contender):
    """One that may take so much and has taken so much."""

    def __init__(self, folder: Path, most: int, taken: int) -> None:
        super().__init__("holding", (), ROOT, folder / "log", 1.0, most_memory_bytes=most)
        self.taken = taken

    def private_bytes(self) -> int:
        return self.taken


def test_what_an_engine_has_taken_it_takes_no_more() -> None:
    folder = Path("/nowhere")
    assert growth_bytes(Holding(folder, 100, 30)) == 70
    assert growth_bytes(Holding(folder, 100, 130)) == 0
    assert growth_bytes(Holding(folder, 0, 30)) == 0


def test_a_peer_needs_its_memory_and_what_others_may_yet_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "install", lambda *_: None)
    monkeypatch.setattr(starting, "available_memory_bytes", lambda: 3000)
    with pytest.raises(MemoryError, match="engines before it may yet take"):
        start_peer(PEER, setting(tmp_path), [Holding(tmp_path, 1500, 100)])

    commands: list[tuple[Any, ...]] = []

    def command(*arguments: Any, memory_bytes: int) -> list[str]:
        commands.append((*arguments, memory_bytes))
        return [sys.executable, "-c", PROCESS]

    monkeypatch.setattr(Peer, "command", command)
    one = start_peer(PEER, setting(tmp_path), [Holding(tmp_path, 1000, 100)])
    try:
        assert commands[0][-1] == 2100
        assert one.most_memory_bytes == 2000
        assert one.private_bytes() > 50_000_000
    finally:
        one.stop()
    assert one.private_bytes() == 0
