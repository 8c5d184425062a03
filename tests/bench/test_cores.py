import os

import pytest

from app.workers.numa import Slot
from bench import cores


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of two cores, each core with two CPUs; no quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "numa_nodes", lambda allowed: [Slot(0, (0, 2)), Slot(1, (4, 6))])
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)


@pytest.mark.usefixtures("two_nodes")
def test_threads_are_one_a_core_on_the_first_node() -> None:
    assert cores.default_threads() == 2
    assert cores.pinned_cpus(2) == (0, 2)
    assert cores.pinned_cpus(3) == (0, 2, 4)
    assert cores.pinned_cpus(8) == (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.mark.usefixtures("two_nodes")
def test_a_containers_quota_bounds_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cpu_quota", lambda: 1)
    assert cores.default_threads() == 1


def test_threads_are_pinned_to_cpus_of_this_process() -> None:
    assert set(cores.pinned_cpus(1)) <= os.sched_getaffinity(0)
    assert len(cores.pinned_cpus(1)) == 1
    assert 1 <= cores.default_threads() <= cores.node_cores()
