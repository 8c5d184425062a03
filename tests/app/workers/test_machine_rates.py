import os
from collections.abc import Sequence

import pytest

from app.capacity.demand import CapacityError
from app.capacity.machine import machine_from
from app.workers.machine_rates import NodeRates, cold_bytes, measured_rates, this_machine
from app.workers.numa import Slot
from kernels import _native

needs_avx2 = pytest.mark.skipif(_native.available_tiers() == ["scalar"], reason="needs AVX2")


@needs_avx2
def test_this_machine_is_one_that_a_plan_can_read() -> None:
    asked: list[tuple[int, str]] = []

    def measure(cpus: Sequence[int], instruction: str) -> NodeRates:
        asked.append((len(cpus), instruction))
        return NodeRates(1e9, 2e9, 3e9)

    found = this_machine(measure)
    assert machine_from(found.to_dict(), "here") == found
    assert asked == [(found.cores_per_node, found.instruction)]
    assert found.nodes * found.cores_per_node <= len(os.sched_getaffinity(0))
    assert found.tier == _native.default_tier()
    assert (found.macs_per_s, found.best_macs_per_s) == (2e9, 3e9)
    assert found.name == _native.cpu_model(), "a machine's own name is nobody's business"


@needs_avx2
@pytest.mark.parametrize(
    ("quota", "workers", "cores"), [(None, 2, 8), (16, 2, 8), (8, 2, 4), (5, 2, 2), (1, 1, 1), (40, 2, 8)]
)
def test_no_more_threads_are_measured_than_the_quota_gives_a_worker(
    quota: int | None, workers: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.workers.machine_rates.cpu_quota", lambda: quota)
    asked: list[Sequence[int]] = []

    def measure(cpus: Sequence[int], instruction: str) -> NodeRates:
        asked.append(cpus)
        return NodeRates(1e9, 2e9, 3e9)

    found = this_machine(measure, [Slot(0, tuple(range(8))), Slot(1, tuple(range(8, 16)))])
    assert (found.nodes, found.cores_per_node) == (workers, cores)
    assert asked == [tuple(range(cores))]
    assert (f"CPU quota is {quota}" in found.source) == (quota is not None and quota < 16)


def test_reads_take_at_most_a_quarter_of_the_memory_that_is_left() -> None:
    gib = 1 << 30
    assert cold_bytes(2, 64 * gib) == gib // 2
    assert cold_bytes(128, 256 * gib) == 16 * gib
    assert cold_bytes(128, 24 * gib) == 6 * gib
    with pytest.raises(CapacityError, match=r"0\.4 GB are available, and 0\.5 GB must be"):
        cold_bytes(2, 400_000_000)


@needs_avx2
def test_a_measurement_leaves_the_process_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    rates = measured_rates((min(before),), "maddubs")
    assert os.sched_getaffinity(0) == before
    assert 1e8 < rates.read_bytes_per_s < 1e12
    assert 1e9 < rates.macs_per_s < 1e13
    assert rates.best_macs_per_s > 0.5 * rates.macs_per_s
    with pytest.raises(ValueError, match="has no abacus"):
        _native.sustained_macs_per_s("abacus", 0.1, 1, [])


def test_a_machine_without_vectors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOUBT_ISA", "scalar")
    with pytest.raises(CapacityError, match="needs AVX2, and the kernels use 'scalar'"):
        this_machine()


@pytest.mark.parametrize(("size", "repeats"), [(0, 1), (1, 0)])
def test_a_read_of_nothing_is_refused(size: int, repeats: int) -> None:
    with pytest.raises(ValueError, match="less than 1"):
        _native.time_read(size, repeats, 1, False, 1, ())
