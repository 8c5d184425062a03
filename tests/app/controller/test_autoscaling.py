"""Serve's count of workers: others' requests decide, and a batch alone keeps one."""

import pytest
from ray.serve._private.common import ReplicaID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from app.controller.autoscaling import without_batches
from app.deploy import worker_deployment
from app.settings.applications import parse_settings
from tests.app.controller.routing import DEPLOYMENT


def context(requests: float, batches: list[float], workers: int) -> AutoscalingContext:
    replicas = [ReplicaID(unique_id=f"{number}", deployment_id=DEPLOYMENT) for number in range(workers)]
    return AutoscalingContext(
        deployment_id=DEPLOYMENT,
        deployment_name="Worker",
        app_name="test",
        current_num_replicas=workers,
        target_num_replicas=workers or 1,
        running_replicas=replicas,
        total_num_requests=requests,
        total_queued_requests=0.0,
        aggregated_metrics={"batch": dict(zip(replicas, batches, strict=False))},
        raw_metrics={},
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=9,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(target_ongoing_requests=4),
    )


@pytest.mark.parametrize(
    ("requests", "batches", "workers", "wanted"),
    [
        (8, [], 1, 2.0),
        (40, [20.0, 12.0], 2, 2.0),
        (32, [20.0, 12.0], 2, 1.0),
        (1, [2.0], 1, 1.0),  # the counts are of different times
        (0, [0.0], 1, 0.0),
        (5, [], 0, 1.0),
    ],
)
def test_a_batch_brings_no_worker_up_and_keeps_one(
    requests: float, batches: list[float], workers: int, wanted: float
) -> None:
    assert without_batches(context(requests, batches, workers)) == (wanted, {})


def test_the_workers_have_this_policy() -> None:
    settings = parse_settings({"model": {"folder": "m"}, "worker": {"autoscaling": {"max_workers": 3}}})
    config = worker_deployment(settings)._deployment_config.autoscaling_config
    assert config is not None
    assert config.policy.get_policy()(context(8, [4.0], 1)) == (1.0, {})
