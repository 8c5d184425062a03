"""Measures this machine for a plan: reads and multiply-adds of one NUMA node's cores, and the memory.

Takes about a second, and for that time all cores of the node. Knows no model and no engine.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from app.capacity.demand import CapacityError
from app.capacity.machine import Machine
from app.workers.numa import Slot, numa_nodes
from kernels import _native

_INSTRUCTIONS: Final[Mapping[str, str]] = {
    "avx2": "maddubs", "avx_vnni": "maddubs", "avx512_vnni": "vnni", "amx_int8": "amx_bf16",
}  # fmt: skip
"""Whose rate counts, by tier: what the shares were fitted to."""
_READ_BYTES_PER_CORE: Final = 32 << 20
_LEAST_READ_BYTES: Final = 128 << 20
_COLD_FACTOR: Final = 4
"""The memory that is gone through: several times the last-level cache, of which a core has up to 12 MB."""
_READS: Final = 9

Rates = tuple[float, float]
"""Bytes read, and multiply-adds made, in a second."""


def this_machine(measure: Callable[[Sequence[int], str], Rates] | None = None) -> Machine:
    """This machine, measured on its first NUMA node; the others count as equal.

    measure: of (CPUs, instruction). Raises CapacityError where no rates can be had, OSError.
    """
    tier = _native.default_tier()
    if tier not in _INSTRUCTIONS:
        raise CapacityError(f"this machine cannot be measured: it needs AVX2, and the kernels use {tier!r}")
    nodes = numa_nodes(sorted(os.sched_getaffinity(0)))
    read, macs = (measure or measured_rates)(nodes[0].cpus, _INSTRUCTIONS[tier])
    processor = _native.cpu_model()
    return Machine(
        name=f"{socket.gethostname()} ({processor})",
        tier=tier,
        vendor="intel" if "intel" in processor.lower() else "amd",
        nodes=len(nodes),
        cores_per_node=_cores(nodes),
        memory_bytes=_memory_bytes(),
        read_bytes_per_s=read,
        macs_per_s=macs,
        best_read_bytes_per_s=read,
        best_macs_per_s=macs,
        instruction=_INSTRUCTIONS[tier],
        is_measured=True,
        source=f"measured here with {len(nodes[0].cpus)} threads on node {nodes[0].numa_node}",
    )


def measured_rates(cpus: Sequence[int], instruction: str) -> Rates:
    """The best of several short samples: other programs only slow them down."""
    threads = len(cpus)
    read_bytes = max(_LEAST_READ_BYTES, threads * _READ_BYTES_PER_CORE)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)  # so that the memory which is read lies on the node
    try:
        times = _native.time_read(read_bytes, _READS, _COLD_FACTOR * read_bytes, True, threads, cpus)
        peaks = _native.measure_compute(threads, cpus)
    finally:
        os.sched_setaffinity(0, before)
    return read_bytes / min(cpu_s for _, cpu_s in times), peaks[f"{instruction}_macs_per_s"]


def _cores(nodes: Sequence[Slot]) -> int:
    return min(len(node.cpus) for node in nodes)


def _memory_bytes(meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """All of it, or the container's limit if that is less."""
    lines = meminfo.read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    try:
        return min(total, int(limit.read_text()))
    except (OSError, ValueError):  # there is no limit
        return total
