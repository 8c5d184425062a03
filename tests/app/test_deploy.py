"""What our settings become in Ray Serve's options."""

from pathlib import Path
from typing import Any

import pytest

from app.deploy import at_absolute_path, build, worker_deployment
from app.settings import parse_settings


def options_of_ingress(ingress: dict[str, Any]) -> tuple[int, int | None]:
    """Surge in per cent, and replicas of a node."""
    settings = parse_settings({"model": {"folder": "/m"}, "ingress": ingress})
    deployment: Any = build(settings)._bound_deployment
    return deployment._deployment_config.max_surge_percent, deployment._replica_config.max_replicas_per_node


def test_a_single_ingress_is_replaced_by_one_that_is_up() -> None:
    assert options_of_ingress({}) == (1, None)
    assert options_of_ingress({"max_per_node": 1}) == (1, None)
    assert options_of_ingress({"count": 2}) == (1, None)
    assert options_of_ingress({"count": 2, "max_per_node": 1}) == (0, 1)  # there may be no third node


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
        ({"ray_resources": {"numa_node": 1.0}}, False),
        ({"ray_resources": {"numa_node": 0.5}}, True),
        ({"ray_resources": {"numa_node": 1.0}, "surge": True}, True),
        ({"ray_resources": {"numa_node": 1.0}, "autoscaling": {"max_workers": 2}}, True),
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


def test_a_relative_model_is_looked_for_where_ray_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = parse_settings({"model": {"folder": "m"}})
    with pytest.raises(ValueError, match=f"no m in {tmp_path}, where Ray was started; give an absolute path$"):
        build(settings)
    (tmp_path / "m").mkdir()
    assert at_absolute_path(settings).model.folder == f"{tmp_path}/m"
    assert at_absolute_path(parse_settings({"model": {"folder": "/elsewhere/m"}})).model.folder == "/elsewhere/m"
