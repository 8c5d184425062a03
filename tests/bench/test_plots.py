import json
from pathlib import Path
from typing import Any

import pytest

from bench.plots import (
    draw,
    points_of_disks,
    points_of_first_token,
    points_of_memory,
    points_over_context,
    points_over_streams,
)

NAMES = ("prefill 512", "prefill 4096", "decode 1 at 128", "decode 8 at 128", "decode 1 at 4096", "decode 16 at 128")
RATES = (256.0, 128.0, 60.0, 240.0, 30.0, None)
RESULT: dict[str, Any] = {
    "model": "embedded",
    "cpu": "a CPU",
    "works": {name: {} for name in NAMES},
    "engines": {
        "redoubt": {
            "results": {
                name: {"none": "crashed"} if rate is None else {"median": rate, "rounds": [rate / 2, rate, rate * 2]}
                for name, rate in zip(NAMES, RATES, strict=True)
            }
        }
    },
}


def test_points_are_of_the_works_that_finished() -> None:
    assert points_over_streams(RESULT) == {"redoubt": [(1, 60.0, 30.0, 120.0), (8, 240.0, 120.0, 480.0)]}
    assert points_over_context(RESULT) == {"redoubt": [(128, 60.0, 30.0, 120.0), (4096, 30.0, 15.0, 60.0)]}
    assert points_of_first_token(RESULT) == {"redoubt": [(512, 2.0, 1.0, 4.0), (4096, 32.0, 16.0, 64.0)]}


def test_a_picture_needs_two_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert [path.name for path in draw(json.loads(json.dumps(RESULT)), tmp_path)] == [
        "embedded-batch.svg", "embedded-context.svg", "embedded-first-token.svg",
    ]  # fmt: skip
    rate = RESULT["engines"]["redoubt"]["results"]["decode 1 at 128"]
    lone = {**RESULT, "works": {}, "engines": {"redoubt": {"results": {"decode 1 at 128": rate}}}}
    assert draw(lone, tmp_path / "none") == []


KINDS = {"cold": 100.0, "hot": 10.0, "restored": 20.0, "restored_from_disk": 30.0}
LENGTH: dict[str, Any] = {
    **KINDS,
    "ranges": {kind: [ms / 2, ms * 2] for kind, ms in KINDS.items()},
    "llama_cpp": {**KINDS, "cold": 500.0},
}
MEMORY: dict[str, Any] = {
    "model": "embedded",
    "cpu": "a CPU",
    "first_token_ms": {"64": LENGTH, "256": LENGTH},
    "disks": [
        {"bytes_per_s": rate, "first_token_ms": {"256": {"computed": 50.0, "always": 90.0, "auto": 51.0}}}
        for rate in (None, 500_000_000, 20_000_000)
    ],
}


def test_points_of_saved_pages() -> None:
    points = points_of_memory(MEMORY)
    assert points["computed"] == [(64, 0.1, 0.05, 0.2), (256, 0.1, 0.05, 0.2)]
    assert points["llama.cpp, computed"] == [(64, 0.5, 0.5, 0.5), (256, 0.5, 0.5, 0.5)]
    assert points_of_disks(MEMORY, "256")["always"] == [(20, 0.09, 0.09, 0.09), (500, 0.09, 0.09, 0.09)]


def test_saved_pages_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert [path.name for path in draw(json.loads(json.dumps(MEMORY)), tmp_path)] == [
        "embedded-memory.svg", "embedded-memory-disks-256.svg",
    ]  # fmt: skip
