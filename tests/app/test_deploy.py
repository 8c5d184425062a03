"""What our settings become in Ray Serve's options."""

from typing import Any

import pytest

from app.deploy import worker_deployment
from app.settings import parse_settings


def surge_percent(worker: dict[str, Any]) -> int:
    deployment: Any = worker_deployment(parse_settings({"model": {"folder": "m"}, "worker": worker}))
    percent = deployment._deployment_config.max_surge_percent
    assert isinstance(percent, int)
    return percent


@pytest.mark.parametrize(
    ("worker", "is_first_one_more"),
    [
        ({}, True),
        ({"count": 2}, False),
        ({"surge": False}, False),
        ({"count": 2, "surge": True}, True),
        ({"autoscaling": {"max_workers": 4}}, True),
        ({"autoscaling": {"min_workers": 2, "max_workers": 4}}, False),
        ({"count": 2, "autoscaling": {"max_workers": 4}}, True),
    ],
)
def test_a_rolling_change_begins_with_a_new_worker_where_there_may_be_one_only(
    worker: dict[str, Any], is_first_one_more: bool
) -> None:
    percent = surge_percent(worker)
    for workers in (1, 2, 100):  # Serve rounds up to whole workers
        assert -(-percent * workers // 100) == is_first_one_more
