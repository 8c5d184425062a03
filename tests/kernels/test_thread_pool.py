import os

import pytest

from kernels._native import testing


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_no_thread_passes_a_barrier_early(threads: int) -> None:
    assert testing.measure_barrier_ns(threads, rounds=300) > 0


def test_threads_run_on_the_cpus_they_are_given() -> None:
    before = os.sched_getaffinity(0)
    testing.measure_barrier_ns(1, [min(before)], rounds=10)
    assert os.sched_getaffinity(0) == before


def test_a_cpu_that_is_not_there_is_named() -> None:
    with pytest.raises(OSError, match="CPU 1023"):
        testing.measure_barrier_ns(2, [min(os.sched_getaffinity(0)), 1023])
    with pytest.raises(OSError, match="CPU 1023"):
        testing.measure_barrier_ns(1, [1023])


@pytest.mark.parametrize(("threads", "cpus", "message"), [(0, [], "threads: 0"), (2, [0], "cpus: 1"), (1, [-1], "-1")])
def test_bad_sizes_are_refused(threads: int, cpus: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        testing.measure_barrier_ns(threads, cpus)
