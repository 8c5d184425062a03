import json
import math
import subprocess
import sys
from typing import Any

import pytest

from app.controller.policies import choose_shortest_queue
from tests.service.policies_on_ray import CHATS, HELD_REQUESTS, LINES, LOTTERY_REQUESTS

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.service.policies_on_ray"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_workers_measure_their_own_speed(measured: dict[str, Any]) -> None:
    slow, fast = sorted(measured["LOTTERY"]["speeds"].values())
    assert 2 < fast / slow < 6  # a step of the slow one takes four times as long


def test_lottery_over_two_real_workers(measured: dict[str, Any]) -> None:
    speeds, counts = measured["LOTTERY"]["speeds"], measured["LOTTERY"]["counts"]
    assert sum(counts.values()) == LOTTERY_REQUESTS
    for worker_id, speed in speeds.items():
        probability = speed / sum(speeds.values())
        deviation = math.sqrt(LOTTERY_REQUESTS * probability * (1 - probability))
        # By chance once in two million runs.
        assert abs(counts[worker_id] - LOTTERY_REQUESTS * probability) < 5 * deviation


def test_shortest_queue_over_two_real_workers(measured: dict[str, Any]) -> None:
    speeds = measured["SHORTEST_QUEUE"]["speeds"]
    ids = list(speeds)
    queues = [0] * len(ids)
    for _ in range(HELD_REQUESTS):
        queues[choose_shortest_queue(queues, [speeds[i] for i in ids])] += 1
    assert measured["SHORTEST_QUEUE"]["queue_lengths"] == dict(zip(ids, queues, strict=True))


def test_a_batch_gives_its_places_to_chats_and_goes_on_with_its_tokens(measured: dict[str, Any]) -> None:
    assert measured["batches"] == {"held": LINES, "chats": [20] * CHATS, "lines": [True] * LINES}
