"""What our settings become in Ray Serve's options."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from app.deploy import build, build_model, checked, worker_deployment
from app.settings.applications import parse_settings
from tests.app.tiny_model import write_model


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
    with pytest.raises(RayServeException, match=f"no m in {tmp_path}, where Ray was started; give an absolute path$"):
        build(settings)
    write_model(tmp_path / "m")
    assert checked(settings).model.folder == f"{tmp_path}/m"
    assert checked(parse_settings({"model": {"folder": "/elsewhere/m"}})).model.folder == "/elsewhere/m"


def test_a_model_that_cannot_be_served_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "m")
    settings = parse_settings({"model": {"folder": str(folder)}})

    def refusal(build: Callable[[Any], object] = build) -> str:
        # Serve shows the message of this exception alone, and of others a traceback.
        with pytest.raises(RayServeException) as caught:
            build(settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    build(settings)
    (folder / "chat_template.jinja").write_text("{% if %}")
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text("{}")
    assert "the chat template is not valid, line 1" in refusal()
    assert "the chat template is not valid, line 1" in refusal(build_model)
    (folder / "tokenizer_config.json").write_text(config)
    (folder / "tokenizer.json").write_text("{}")
    assert f"{folder}: 'model' is missing" in refusal()
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.truncate(100)
    assert "model.safetensors is damaged: " in refusal()
    shutil.rmtree(folder)
    monkeypatch.setattr("app.deploy._is_only_node", lambda: True)
    assert refusal() == f"model: there is no {folder}; convert the model first: redoubt convert SRC {folder}"
