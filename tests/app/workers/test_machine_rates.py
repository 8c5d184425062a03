import os
from collections.abc import Sequence

import pytest

from app.capacity.demand import CapacityError
from app.capacity.machine import machine_from
from app.workers.machine_rates import measured_rates, this_machine
from kernels import _native

needs_avx2 = pytest.mark.skipif(_native.available_tiers() == ["scalar"], reason="needs AVX2")


@needs_avx2
def test_this_machine_is_one_that_a_plan_can_read() -> None:
    asked: list[tuple[int, str]] = []

    def measure(cpus: Sequence[int], instruction: str) -> tuple[float, float]:
        asked.append((len(cpus), instruction))
        return 1e9, 2e9

    found = this_machine(measure)
    assert machine_from(found.to_dict(), "here") == found
    assert asked == [(found.cores_per_node, found.instruction)]
    assert found.nodes * found.cores_per_node <= len(os.sched_getaffinity(0))
    assert found.tier == _native.default_tier()


@needs_avx2
def test_a_measurement_leaves_the_process_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    read, macs = measured_rates((min(before),), "maddubs")
    assert os.sched_getaffinity(0) == before
    assert 1e8 < read < 1e12
    assert 1e9 < macs < 1e13


def test_a_machine_without_vectors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOUBT_ISA", "scalar")
    with pytest.raises(CapacityError, match="needs AVX2, and the kernels use 'scalar'"):
        this_machine()


@pytest.mark.parametrize(("size", "repeats"), [(0, 1), (1, 0)])
def test_a_read_of_nothing_is_refused(size: int, repeats: int) -> None:
    with pytest.raises(ValueError, match="less than 1"):
        _native.time_read(size, repeats, 1, False, 1, ())
