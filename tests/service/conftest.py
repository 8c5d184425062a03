"""The real application with the embedded model and two workers of one core each, started once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.running import RunningService, running_service, write_config


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that starts whole services, beside the other tests, may take longer than the limit of all tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.service)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def service_model(request: pytest.FixtureRequest) -> Path:
    """The converted model: REDOUBT_TEST_MODEL, or the embedded one."""
    other = os.environ.get("REDOUBT_TEST_MODEL")
    folder = Path(other) if other else request.getfixturevalue("embedded_model")
    assert isinstance(folder, Path)
    return folder


@pytest.fixture(scope="session")
def service_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ray_configs/local.yaml with two small workers, whose queues fill soon and whose loss is noticed soon."""
    worker = {
        "count": 2,
        "cpus_per_worker": 1,
        "ray_num_cpus": 0.1,
        "max_concurrent_requests": 2,
        "max_queued_requests": 2,
        "heartbeat_period_s": 0.5,
        "health_check_period_s": 1.0,
        "health_check_timeout_s": 60.0,
        "warm_up_prompt_tokens": 64,
        "warm_up_new_tokens": 8,
    }
    folder = tmp_path_factory.mktemp("config")
    changes: dict[str, dict[str, Any]] = {
        "engine": {"kv_memory_bytes": 400 << 20},
        "worker": worker,
        "router": {"expiration_s": 6.0},
        "ingress": {"access_log_folder": str(folder / "access")},
    }
    return write_config(folder / "service.yaml", changes)


@pytest.fixture(scope="session")
def service(
    service_config: Path, service_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """Started as its users do, and stopped by Ctrl-C; no process may be left."""
    log = tmp_path_factory.mktemp("service") / "log"
    with running_service(service_config, service_model, log, workers=2) as running:
        yield running
