import json
from pathlib import Path
from typing import Any

import pytest

from bench.plots import draw, points_of_first_token, points_over_context, points_over_streams

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
